// Small messages between ranks beside MPI, which a thread of its own may send while MPI waits: UDP, over IPv4 or IPv6, whichever gets
// through. Nothing is repeated or acknowledged here, and anything may come in: callers know their own by a key.
#ifndef DATAGRAMS_H
#define DATAGRAMS_H

#include "base/log.h"

#include <netinet/in.h>
#include <stdint.h>
#include <sys/socket.h>

typedef struct Datagrams {
    int file; // to poll; -1: none
    int family;
} Datagrams;

// Where a message came from or goes to.
typedef struct Place {
    struct sockaddr_storage address;
    socklen_t length;
} Place;

enum { DATAGRAMS_ADDRESSES = 16 };

// The addresses of this host, IPv4 as IPv6 writes it, and the port behind them.
typedef struct Addresses {
    struct in6_addr address[DATAGRAMS_ADDRESSES];
    int32_t count, port;
} Addresses;

// A socket at a free port. 0, or -1 with err.
int datagrams_open(Datagrams *socket, Error *err);
void datagrams_close(Datagrams *socket);

// Every address under which another host, or this one, may reach the socket.
void datagrams_addresses(const Datagrams *socket, Addresses *addresses);
// Entry i of another host's addresses. False where this socket cannot reach its kind.
bool datagrams_place(const Datagrams *socket, const Addresses *addresses, int i, Place *place);

// Neither waits. What cannot be sent is lost, as on the way.
void datagrams_send(const Datagrams *socket, const Place *to, const void *bytes, size_t count);
// True when a message of exactly `count` bytes was there; others are dropped.
bool datagrams_receive(const Datagrams *socket, Place *from, void *bytes, size_t count);

#endif
