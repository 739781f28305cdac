// Signed UDP datagrams between the ranks' supervisors and the coordinator (coordinator.h), over IPv4 or IPv6. The
// channel neither repeats nor acknowledges a datagram. Receivers drop a datagram that has a wrong signature, was seen
// before, or has a field out of range.
// The kernel drops a datagram without the job's gate word before it takes space in the receive buffer, so that a flood
// from another user displaces no heartbeat.
//
//     supervisor -- BEAT ---> coordinator   the rank is alive; once a second, at first to every coordinator address
//     supervisor <- ANSWER -- coordinator   to each BEAT and ENDED
//     supervisor -- ENDED --> coordinator   how the rank has ended; repeated until it is answered
//     supervisor <- END ----- coordinator   the job ends: kill the rank
#pragma once

#include "base/log.h"
#include "base/siphash.h"
#include "status_page.h"

#include <netinet/in.h>
#include <sys/socket.h>

typedef enum MessageKind { MESSAGE_BEAT = 1, MESSAGE_ANSWER, MESSAGE_ENDED, MESSAGE_END } MessageKind;

typedef struct Message {
    uint64_t gate;      // word common to all messages of a job; unknown to other users
    uint64_t signature; // signature of the rest of the message
    uint64_t counter;   // number of messages of this sender so far; receivers ignore repeats
    int32_t kind, rank; // rank: rank of the supervisor that sends or receives the message
    int32_t address;    // index of the coordinator's address that the message was sent to; an answer repeats it
    int32_t heard;      // in an ANSWER: the rank's Ending as the coordinator knows it
    RankStatus status;  // the rank's status; in an ANSWER, rank 0's; in an END, only `code`. text: only in ENDED
} Message;

// The address of a message's sender or receiver.
typedef struct Place {
    struct sockaddr_storage address;
    socklen_t length;
} Place;

enum { MESSAGES_ADDRESSES = 16 };

// The data with which supervisors reach a coordinator: the key, which no datagram contains, the coordinator's addresses
// (IPv4 mapped into IPv6) and the port.
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

// Generates a random key, which the channel keeps, and lists every address at which this host or another host can reach
// the channel. -1 with err.
int channel_invite(Channel *channel, Invitation *invitation, Error *err);
// Sets *place to address i of an invitation. Returns false if this channel cannot reach that kind of address.
bool channel_place(const Channel *channel, const Invitation *invitation, int i, Place *place);

// Signs and sends without waiting. A message that cannot be sent is lost.
void channel_send(Channel *channel, const Place *to, Message *message);
// Receives the next valid message with a rank below `ranks`; false if there is no such message. Reads at most *budget
// datagrams and subtracts their number from *budget, so that a flood of datagrams cannot delay the caller for long.
bool channel_receive(Channel *channel, int ranks, Place *from, Message *message, int *budget);

// Convert an invitation to text for an environment variable, and back. The text has no addresses. Reading it
// sets the loopback address, because a program starts ranks only on its own host. -1 if the text is malformed.
enum { INVITATION_TEXT = 64 };
void invitation_write(const Invitation *invitation, char text[INVITATION_TEXT]);
int invitation_read(Invitation *invitation, const char *text);
