// The connection between a rank's supervisor and the coordinator (coordinator.h): a stream of messages of one size. No
// side waits for the other.
//
//     supervisor --> coordinator   at once and every second the rank's status; as the last message, how the rank ended
//     supervisor <-- coordinator   to each message rank 0's status; when the job ends: kill the rank
//     end of file                  the other process has died; after the last message: it has arrived
//
// The ranks of a launch use a Unix socket in its folder, which no other user can enter. Ranks of mpirun or srun use
// TCP, and learn port, addresses and tokens from rank 0 over MPI. Connections without the token are closed.
#pragma once

#include "status_page.h"

#include <netinet/in.h>

// The hosts of a job have one byte order and run one program.
typedef struct Message {
    uint64_t token; // shows that the sender belongs to the job
    int32_t rank;   // the supervisor's rank
    int32_t end;    // set by the coordinator: exit code with which the job ends; -1: the job continues
    RankStatus status;
} Message;

enum { INVITATION_ADDRESSES = 16 };

// An address and a port. The port is at the same place in both families.
typedef union TcpAddress {
    struct sockaddr any;
    struct sockaddr_in four;
    struct sockaddr_in6 six;
} TcpAddress;

// How supervisors reach the coordinator over TCP. The two sides show different tokens, so that another process at one
// of the addresses cannot impersonate the coordinator.
typedef struct Invitation {
    uint64_t supervisor, coordinator; // token that each side shows
    TcpAddress address[INVITATION_ADDRESSES];
    int32_t count; // 0: not known yet
} Invitation;

typedef struct Connection {
    int file;         // -1: closed
    size_t got, left; // bytes of `in` that have arrived; bytes of `out` that are still to be sent
    Message in, out;
} Connection;

// Listen, without waiting: at a socket in `folder`, or at a free TCP port of the loopback or of all interfaces.
// connection_listen_tcp fills the invitation. Return a descriptor, or -1 with err.
int connection_listen(const char *folder, Error *err);
int connection_listen_tcp(bool loopback, Invitation *invitation, Error *err);
// Accepts the next connection. Returns false if there is none.
bool connection_accept(int listener, Connection *);

// Connect to the socket in `folder`, or start to connect to one address of an invitation. If that fails, file is -1.
Connection connection_open(const char *folder);
Connection connection_open_tcp(const TcpAddress *address);
void connection_close(Connection *);

// Sends a message. Returns false, and sends nothing, if the previous message is still being sent or the connection is
// closed.
bool connection_send(Connection *, const Message *);

// Receives the next message; on RECEIVED_END closes the connection.
typedef enum Received { RECEIVED_NOTHING, RECEIVED_MESSAGE, RECEIVED_END } Received;
Received connection_receive(Connection *, Message *);
