// Sockets and addresses; messages that arrive or leave in pieces.
#include "connection.h"

#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

// --- in a folder

// Listens at the socket in a folder, or connects to it. A socket address is limited to 108 bytes but a folder's path
// may be longer, so the address refers to a descriptor of the folder. Returns a nonblocking descriptor, or -1 with
// errno.
static int local_(const char *folder, bool listens) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int place = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC), file = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(at.sun_path, sizeof at.sun_path, "/proc/self/fd/%d/coordinator", place);
    bool done =
        file >= 0 && (listens ? bind(file, (struct sockaddr *)&at, sizeof at) == 0 && listen(file, SOMAXCONN) == 0
                              : connect(file, (struct sockaddr *)&at, sizeof at) == 0);
    int kept = errno;
    if (place >= 0) close(place);
    if (file >= 0 && !done) close(file);
    errno = kept;
    return done && fcntl(file, F_SETFL, O_NONBLOCK) == 0 ? file : -1;
}

int connection_listen(const char *folder, Error *err) {
    int file = local_(folder, true);
    if (file >= 0) return file;
    return error_set(err, EXIT_FAILED, "cannot make a socket in %s (%s); raise ulimit -n, or free space there", folder,
                     strerror(errno));
}

Connection connection_open(const char *folder) { return (Connection){.file = local_(folder, false)}; }

// --- over TCP

static socklen_t length_(const TcpAddress *at) {
    return at->any.sa_family == AF_INET6 ? sizeof at->six : sizeof at->four;
}

static TcpAddress four_(in_addr_t address) {
    return (TcpAddress){.four = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(address)}};
}

static int tcp_listen_(TcpAddress at) {
    int file = socket(at.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), off = 0, data_within_s = 5;
    if (file < 0) return -1;
    if (at.any.sa_family == AF_INET6) setsockopt(file, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off); // IPv4, too
    // For the first seconds, accepts a connection only once data has arrived on it.
    setsockopt(file, IPPROTO_TCP, TCP_DEFER_ACCEPT, &data_within_s, sizeof data_within_s);
    if (bind(file, &at.any, length_(&at)) == 0 && listen(file, SOMAXCONN) == 0) return file;
    close(file);
    return -1;
}

int connection_listen_tcp(bool loopback, Invitation *invitation, Error *err) {
    TcpAddress own;
    socklen_t length = sizeof own;
    int file = loopback ? -1 : tcp_listen_((TcpAddress){.six = {.sin6_family = AF_INET6}});
    bool six = file >= 0;
    memset(invitation, 0, sizeof *invitation);
    if (file < 0) file = tcp_listen_(four_(loopback ? INADDR_LOOPBACK : INADDR_ANY));
    if (file < 0 || getrandom(invitation, 2 * sizeof invitation->supervisor, 0) < 0 ||
        getsockname(file, &own.any, &length) != 0) {
        if (file >= 0) close(file);
        return error_set(err, EXIT_FAILED, "cannot listen on a TCP port (%s); raise ulimit -n", strerror(errno));
    }
    // The addresses at which other hosts may reach this one, IPv4 first; or the loopback address if there is no other.
    struct ifaddrs *all = NULL;
    if (loopback || getifaddrs(&all) != 0) all = NULL;
    for (int sixth = 0; sixth < (six ? 2 : 1); sixth++)
        for (struct ifaddrs *at = all; at != NULL && invitation->count < INVITATION_ADDRESSES; at = at->ifa_next) {
            TcpAddress *to = &invitation->address[invitation->count];
            if (at->ifa_addr == NULL || at->ifa_addr->sa_family != (sixth ? AF_INET6 : AF_INET)) continue;
            if (!(at->ifa_flags & IFF_UP) || at->ifa_flags & IFF_LOOPBACK) continue;
            memcpy(to, at->ifa_addr, sixth ? sizeof to->six : sizeof to->four);
            // Link-local addresses mean nothing without the other host's name for the link.
            invitation->count += !sixth || !IN6_IS_ADDR_LINKLOCAL(&to->six.sin6_addr);
        }
    if (all != NULL) freeifaddrs(all);
    if (invitation->count == 0) invitation->address[invitation->count++] = four_(INADDR_LOOPBACK);
    for (int i = 0; i < invitation->count; i++) invitation->address[i].four.sin_port = own.four.sin_port;
    return file;
}

static void tcp_tune_(int file) {
    int yes = 1;
    setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    // After a link is cut, TCP waits before it resends, by default for as long as the cut lasted. These options keep
    // that wait short: on every kernel for the first six resends, since Linux 6.15 for all of them (at most 1 s).
    enum { RTO_MAX_MS = 44 }; // TCP_RTO_MAX_MS in linux/tcp.h; older kernels refuse it
    int longest_ms = 1000;
    setsockopt(file, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, &yes, sizeof yes);
    setsockopt(file, IPPROTO_TCP, RTO_MAX_MS, &longest_ms, sizeof longest_ms);
}

Connection connection_open_tcp(const TcpAddress *to) {
    Connection connection = {.file = socket(to->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
    if (connection.file >= 0) tcp_tune_(connection.file);
    if (connect(connection.file, &to->any, length_(to)) != 0 && errno != EINPROGRESS) connection_close(&connection);
    return connection;
}

bool connection_accept(int listener, Connection *connection) {
    *connection = (Connection){.file = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)};
    if (connection->file >= 0) tcp_tune_(connection->file); // has no effect on a Unix socket
    return connection->file >= 0;
}

void connection_close(Connection *connection) {
    if (connection->file >= 0) close(connection->file);
    *connection = (Connection){.file = -1};
}

// --- messages

// Sends the rest of the last message. If the connection is broken, connection_receive detects it.
static void send_rest_(Connection *connection) {
    while (connection->left > 0) {
        const char *rest = (const char *)(&connection->out + 1) - connection->left;
        ssize_t sent = send(connection->file, rest, connection->left, MSG_NOSIGNAL);
        if (sent <= 0) return;
        connection->left -= (size_t)sent;
    }
}

bool connection_send(Connection *connection, const Message *message) {
    if (connection->file < 0) return false;
    send_rest_(connection);
    if (connection->left > 0) return false;
    connection->out = *message;
    connection->left = sizeof *message;
    send_rest_(connection);
    return true;
}

Received connection_receive(Connection *connection, Message *message) {
    if (connection->file < 0) return RECEIVED_NOTHING;
    send_rest_(connection);
    while (connection->got < sizeof connection->in) {
        char *to = (char *)&connection->in + connection->got;
        ssize_t got = recv(connection->file, to, sizeof connection->in - connection->got, 0);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) return RECEIVED_NOTHING;
        if (got <= 0) return connection_close(connection), RECEIVED_END;
        connection->got += (size_t)got;
    }
    connection->got = 0;
    *message = connection->in;
    message->status.action[STATUS_ACTION - 1] = message->status.wait[STATUS_WAIT - 1] = '\0';
    message->status.text[STATUS_TEXT - 1] = '\0';
    return RECEIVED_MESSAGE;
}
