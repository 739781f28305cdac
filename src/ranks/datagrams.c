#include "datagrams.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <string.h>
#include <unistd.h>

static Place anywhere_(int family) {
    Place place = {.length = family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in)};
    place.address.ss_family = (sa_family_t)family; // and zeros: any address, any port
    return place;
}

static int datagrams_open_(int family) {
    int file = socket(family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), off = 0, capacity = 4 << 20;
    if (file < 0) return -1;
    Place place = anywhere_(family);
    if (family == AF_INET6) setsockopt(file, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off); // IPv4 through it too
    setsockopt(file, SOL_SOCKET, SO_RCVBUF, &capacity, sizeof capacity); // a few thousand ranks at once
    if (bind(file, (const struct sockaddr *)&place.address, place.length) == 0) return file;
    close(file);
    return -1;
}

int datagrams_open(Datagrams *socket, Error *err) {
    *socket = (Datagrams){datagrams_open_(AF_INET6), AF_INET6};
    if (socket->file < 0) *socket = (Datagrams){datagrams_open_(AF_INET), AF_INET}; // hosts without IPv6
    return socket->file >= 0 ? 0 : error_set(err, EXIT_FAILED, "no UDP socket: %s", strerror(errno));
}

void datagrams_close(Datagrams *socket) {
    if (socket->file >= 0) close(socket->file);
    socket->file = -1;
}

// --- addresses

static bool datagrams_add_(Addresses *addresses, const struct sockaddr *address) {
    struct in6_addr *to = &addresses->address[addresses->count];
    if (address->sa_family == AF_INET6) {
        *to = ((const struct sockaddr_in6 *)address)->sin6_addr;
        // Addresses of one link mean nothing without the name that the other host has for it.
        return !IN6_IS_ADDR_LINKLOCAL(to) && !IN6_IS_ADDR_LOOPBACK(to);
    }
    memset(to, 0, sizeof *to);
    to->s6_addr[10] = to->s6_addr[11] = 0xff;
    memcpy(&to->s6_addr[12], &((const struct sockaddr_in *)address)->sin_addr, 4);
    return true;
}

void datagrams_addresses(const Datagrams *socket, Addresses *addresses) {
    struct ifaddrs *all = NULL;
    Place own;
    memset(addresses, 0, sizeof *addresses);
    own.length = sizeof own.address;
    if (getsockname(socket->file, (struct sockaddr *)&own.address, &own.length) != 0 || getifaddrs(&all) != 0) return;
    addresses->port = socket->family == AF_INET6 ? ((struct sockaddr_in6 *)&own.address)->sin6_port
                                                 : ((struct sockaddr_in *)&own.address)->sin_port;
    const int families[] = {AF_INET, AF_INET6};
    for (int f = 0; f < (socket->family == AF_INET6 ? 2 : 1); f++)
        for (struct ifaddrs *at = all; at != NULL && addresses->count < DATAGRAMS_ADDRESSES; at = at->ifa_next) {
            if (at->ifa_addr == NULL || at->ifa_addr->sa_family != families[f] || !(at->ifa_flags & IFF_UP)) continue;
            addresses->count += datagrams_add_(addresses, at->ifa_addr);
        }
    freeifaddrs(all);
}

bool datagrams_place(const Datagrams *socket, const Addresses *addresses, int i, Place *place) {
    const struct in6_addr *from = &addresses->address[i];
    *place = anywhere_(socket->family);
    if (socket->family == AF_INET6) {
        struct sockaddr_in6 *to = (struct sockaddr_in6 *)&place->address;
        to->sin6_addr = *from;
        to->sin6_port = (in_port_t)addresses->port;
        return true;
    }
    struct sockaddr_in *to = (struct sockaddr_in *)&place->address;
    memcpy(&to->sin_addr, &from->s6_addr[12], 4);
    to->sin_port = (in_port_t)addresses->port;
    return IN6_IS_ADDR_V4MAPPED(from);
}

// --- messages

void datagrams_send(const Datagrams *socket, const Place *to, const void *bytes, size_t count) {
    sendto(socket->file, bytes, count, MSG_NOSIGNAL, (const struct sockaddr *)&to->address, to->length);
}

bool datagrams_receive(const Datagrams *socket, Place *from, void *bytes, size_t count) {
    for (;;) {
        from->length = sizeof from->address;
        ssize_t got = recvfrom(socket->file, bytes, count, MSG_TRUNC, (struct sockaddr *)&from->address, &from->length);
        if (got == (ssize_t)count) return true;
        if (got < 0 && errno != EINTR && errno != ECONNREFUSED) return false;
    }
}
