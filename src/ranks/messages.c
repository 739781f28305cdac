// Sockets, addresses, and the checks that a datagram must pass before it is accepted.
#include "messages.h"

#include <errno.h>
#include <ifaddrs.h>
#include <linux/filter.h>
#include <net/if.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

static Place channel_any_(int family) {
    Place place = {.length = family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in)};
    place.address.ss_family = (sa_family_t)family; // zeros: any address, any port
    return place;
}

static int channel_open_(int family, bool loopback) {
    int file = socket(family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), off = 0, capacity = 4 << 20;
    if (file < 0) return -1;
    Place place = channel_any_(family);
    if (loopback) ((struct sockaddr_in *)&place.address)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (family == AF_INET6) setsockopt(file, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off); // accepts IPv4, too
    setsockopt(file, SOL_SOCKET, SO_RCVBUF, &capacity, sizeof capacity); // bytes: room for a few thousand ranks
    if (bind(file, (const struct sockaddr *)&place.address, place.length) == 0) return file;
    close(file);
    return -1;
}

// Opens an IPv6 socket, which also carries IPv4, or an IPv4 socket if IPv6 fails. Uses only IPv4 on the loopback,
// because every Linux has an IPv4 loopback.
int channel_open(Channel *channel, bool loopback, Error *err) {
    *channel = (Channel){.file = loopback ? -1 : channel_open_(AF_INET6, false), .family = AF_INET6};
    if (channel->file < 0) *channel = (Channel){.file = channel_open_(AF_INET, loopback), .family = AF_INET};
    return channel->file >= 0 ? 0 : error_set(err, EXIT_FAILED, "no UDP socket for heartbeats: %s", strerror(errno));
}

void channel_close(Channel *channel) {
    if (channel->file >= 0) close(channel->file);
    channel->file = -1;
}

// Returns the gate word, which only processes with the key can compute.
static uint64_t channel_gate_(const Channel *channel) { return siphash(channel->key, "gate", 4); }

void channel_set_key(Channel *channel, SipKey key) {
    channel->key = key;
    uint64_t gate = channel_gate_(channel);
    uint32_t word[2]; // the gate word's bytes in memory order; the filter loads them as big-endian numbers
    memcpy(word, &gate, sizeof word);
    enum { HEADER = 8 }; // bytes of the UDP header at the start of the packet
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, HEADER),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ntohl(word[0]), 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, HEADER + 4),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ntohl(word[1]), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, UINT32_MAX), // all bytes
        BPF_STMT(BPF_RET | BPF_K, 0),          // dropped
    };
    struct sock_fprog filter = {sizeof code / sizeof *code, code};
    // Without a filter (some sandboxes) a flood can displace heartbeats; signatures still protect their content.
    setsockopt(channel->file, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter);
}

// --- addresses

static void channel_map_(struct in6_addr *to, const struct in_addr *from) {
    memset(to, 0, sizeof *to);
    to->s6_addr[10] = to->s6_addr[11] = 0xff;
    memcpy(&to->s6_addr[12], from, 4);
}

static bool channel_add_(Invitation *invitation, const struct sockaddr *address) {
    struct in6_addr *to = &invitation->address[invitation->count];
    if (address->sa_family == AF_INET6) {
        *to = ((const struct sockaddr_in6 *)address)->sin6_addr;
        // Link-local addresses mean nothing without the other host's name for the link.
        return !IN6_IS_ADDR_LINKLOCAL(to) && !IN6_IS_ADDR_LOOPBACK(to);
    }
    channel_map_(to, &((const struct sockaddr_in *)address)->sin_addr);
    return true;
}

static void channel_add_interfaces_(const Channel *channel, Invitation *invitation) {
    struct ifaddrs *all = NULL;
    const int families[] = {AF_INET, AF_INET6};
    if (getifaddrs(&all) != 0) return;
    for (int f = 0; f < (channel->family == AF_INET6 ? 2 : 1); f++)
        for (struct ifaddrs *at = all; at != NULL && invitation->count < MESSAGES_ADDRESSES; at = at->ifa_next) {
            if (at->ifa_addr == NULL || at->ifa_addr->sa_family != families[f] || !(at->ifa_flags & IFF_UP)) continue;
            invitation->count += channel_add_(invitation, at->ifa_addr);
        }
    freeifaddrs(all);
}

int channel_invite(Channel *channel, Invitation *invitation, Error *err) {
    Place own = {.length = sizeof own.address};
    memset(invitation, 0, sizeof *invitation);
    if (getrandom(&invitation->key, sizeof invitation->key, 0) != sizeof invitation->key ||
        getsockname(channel->file, (struct sockaddr *)&own.address, &own.length) != 0)
        return error_set(err, EXIT_FAILED, "cannot get a key or a port for heartbeats: %s", strerror(errno));
    channel_set_key(channel, invitation->key);
    const struct sockaddr_in *four = (const struct sockaddr_in *)&own.address;
    bool one = channel->family == AF_INET && four->sin_addr.s_addr != INADDR_ANY;
    // The port has the same offset in sockaddr_in and sockaddr_in6.
    invitation->port = four->sin_port;
    if (one) channel_map_(&invitation->address[invitation->count++], &four->sin_addr);
    else channel_add_interfaces_(channel, invitation);
    return 0;
}

bool channel_place(const Channel *channel, const Invitation *invitation, int i, Place *place) {
    const struct in6_addr *from = &invitation->address[i];
    *place = channel_any_(channel->family);
    if (channel->family == AF_INET6) {
        struct sockaddr_in6 *to = (struct sockaddr_in6 *)&place->address;
        to->sin6_addr = *from;
        to->sin6_port = (in_port_t)invitation->port;
        return true;
    }
    struct sockaddr_in *to = (struct sockaddr_in *)&place->address;
    memcpy(&to->sin_addr, &from->s6_addr[12], 4);
    to->sin_port = (in_port_t)invitation->port;
    return IN6_IS_ADDR_V4MAPPED(from);
}

void invitation_write(const Invitation *invitation, char text[INVITATION_TEXT]) {
    snprintf(text, INVITATION_TEXT, "%d:%016llx:%016llx", (int)invitation->port,
             (unsigned long long)invitation->key.word[0], (unsigned long long)invitation->key.word[1]);
}

int invitation_read(Invitation *invitation, const char *text) {
    unsigned long long key[2];
    int port;
    struct in_addr local = {htonl(INADDR_LOOPBACK)};
    if (sscanf(text, "%d:%16llx:%16llx", &port, &key[0], &key[1]) != 3) return -1;
    *invitation = (Invitation){.key = {{key[0], key[1]}}, .count = 1, .port = port};
    channel_map_(&invitation->address[0], &local);
    return 0;
}

// --- messages

static size_t message_bytes_(const Message *message) {
    return message->kind == MESSAGE_ENDED ? sizeof *message : offsetof(Message, status.text);
}

static uint64_t message_sign_(const Channel *channel, const Message *message) {
    size_t skip = offsetof(Message, counter);
    return siphash(channel->key, (const char *)message + skip, message_bytes_(message) - skip);
}

void channel_send(Channel *channel, const Place *to, Message *message) {
    message->gate = channel_gate_(channel);
    message->counter = ++channel->sent;
    message->signature = message_sign_(channel, message);
    sendto(channel->file, message, message_bytes_(message), MSG_NOSIGNAL, (const struct sockaddr *)&to->address,
           to->length);
}

static bool message_is_valid_(const Channel *channel, const Message *message, size_t bytes, int ranks) {
    enum { MOST_STAGES = 1 << 20, MOST_CODE = 255 };
    if (bytes < offsetof(Message, status.text) || message->kind < MESSAGE_BEAT || message->kind > MESSAGE_END)
        return false;
    if (bytes != message_bytes_(message) || message->signature != message_sign_(channel, message)) return false;
    const RankStatus *status = &message->status;
    return message->rank >= 0 && message->rank < ranks && message->address >= 0 &&
           message->address < MESSAGES_ADDRESSES && status->stage >= -1 && status->stage < MOST_STAGES &&
           status->wait_stage >= -1 && status->wait_stage < MOST_STAGES && status->ending >= ENDING_NONE &&
           status->ending <= ENDING_DIED && status->code >= 0 && status->code <= MOST_CODE && status->signal >= 0 &&
           status->signal < NSIG && status->began >= 0 && status->step >= 0 && status->progress >= 0 &&
           status->when >= 0;
}

bool channel_receive(Channel *channel, int ranks, Place *from, Message *message, int *budget) {
    for (; channel->file >= 0 && *budget > 0; --*budget) {
        from->length = sizeof from->address;
        ssize_t got = recvfrom(channel->file, message, sizeof *message, MSG_TRUNC, (struct sockaddr *)&from->address,
                               &from->length);
        if (got < 0 && errno != EINTR && errno != ECONNREFUSED) return false;
        if (got < 0 || !message_is_valid_(channel, message, (size_t)got, ranks)) continue;
        if (message->kind != MESSAGE_ENDED) message->status.text[0] = '\0'; // not sent
        message->status.action[STATUS_ACTION - 1] = message->status.wait[STATUS_WAIT - 1] = '\0';
        message->status.text[STATUS_TEXT - 1] = '\0';
        --*budget;
        return true;
    }
    return false;
}
