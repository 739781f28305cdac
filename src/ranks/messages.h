// Signed datagrams between the supervisors of ranks and the coordinator that hears them all (coordinator.h): UDP, over
// IPv4 or IPv6, whichever gets through. Nothing is repeated or acknowledged here, and anything may come in: a datagram
// that lacks the right signature, was seen before, or has a field out of range is dropped.
// The kernel drops a datagram without the job's gate word before it takes space in the receive buffer, so that a flood
// from another user displaces no heartbeat.
//
//     supervisor -- BEAT ---> coordinator   its rank lives; once a second, at first to every address of the coordinator
//     supervisor <- ANSWER -- coordinator   to each BEAT and ENDED
//     supervisor -- ENDED --> coordinator   its rank has ended, and how; until it is answered
//     supervisor <- END ----- coordinator   the job ends: kill the rank
#pragma once

#include "base/log.h"
#include "base/siphash.h"
#include "status_page.h"

#include <netinet/in.h>
#include <sys/socket.h>

typedef enum MessageKind { MESSAGE_BEAT = 1, MESSAGE_ANSWER, MESSAGE_ENDED, MESSAGE_END } MessageKind;

typedef struct Message {
    uint64_t gate;      // the same in all messages of a job; unknown to other users
    uint64_t signature; // signature of the rest of the message
    uint64_t counter;   // grows with every message of its sender, so that repeats are ignored
    int32_t kind, rank; // rank: of the supervisor that sends or receives it
    int32_t address;    // which of the coordinator's addresses this was sent to; an answer repeats it
    int32_t heard;      // in an ANSWER: the Ending of the rank that the coordinator received
    RankStatus status;  // status of the rank; in an ANSWER, of rank 0; in END only `code`. Only ENDED carries its text
} Message;

// Where a message came from or goes to.
typedef struct Place {
    struct sockaddr_storage address;
    socklen_t length;
} Place;

enum { MESSAGES_ADDRESSES = 16 };

// The address of a coordinator for its supervisors: the key, which no datagram contains, its addresses (IPv4 in IPv6's
// form) and its port.
typedef struct Invitation {
    SipKey key;
    struct in6_addr address[MESSAGES_ADDRESSES];
    int32_t count, port;
} Invitation;

typedef struct Channel {
    int file; // descriptor to poll, or -1
    int family;
    uint64_t sent; // counter of the last message
    SipKey key;
} Channel;

// Opens a socket at a free port, only on this host's loopback if `loopback`. 0, or -1 with err.
int channel_open(Channel *channel, bool loopback, Error *err);
void channel_close(Channel *channel);

// Sets the key, and the filter that admits only messages with its gate word.
void channel_set_key(Channel *channel, SipKey key);

// Draws a key and lists every address under which this host, or another one, reaches the channel. The channel keeps the
// key. -1 with err.
int channel_invite(Channel *channel, Invitation *invitation, Error *err);
// Fills entry i of an invitation's addresses. Returns false if this channel cannot reach addresses of that kind.
bool channel_place(const Channel *channel, const Invitation *invitation, int i, Place *place);

// Signs and sends without waiting. A message that cannot be sent is lost.
void channel_send(Channel *channel, const Place *to, Message *message);
// Returns true with the next valid message about one of `ranks` ranks. Takes at most *budget datagrams from the socket
// and lowers it by as many, so that a flood of them delays no rank for long.
bool channel_receive(Channel *channel, int ranks, Place *from, Message *message, int *budget);

// Turn an invitation into text for an environment variable, and back. Only the loopback's fits: a program that starts
// its ranks does so on this host. -1 if the text is malformed.
enum { INVITATION_TEXT = 64 };
void invitation_write(const Invitation *invitation, char text[INVITATION_TEXT]);
int invitation_read(Invitation *invitation, const char *text);
