/* The floor: one request of N bytes, one reply of M, over one TCP connection, again and again.
 *
 *   pingpong serve SPIN            prints its port, then answers "N M" framed requests
 *   pingpong ask PORT SPIN N M R   R round trips; prints each in nanoseconds
 *
 * A frame is a little-endian u32 length and the bytes, as the contract has it (section 5). With
 * SPIN 1 both ends look again and again; with 0 they sleep in the kernel.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define LIMIT (32u << 20)
static char *buffer;
static int spin;

static void fail(const char *what) { perror(what); exit(1); }

static void receive(int fd, char *to, size_t n) {
    size_t held = 0;
    while (held < n) {
        ssize_t got = recv(fd, to + held, n - held, spin ? MSG_DONTWAIT : MSG_WAITALL);
        if (got > 0) { held += (size_t)got; continue; }
        if (got == 0) exit(0);
        if (errno != EAGAIN && errno != EINTR) fail("recv");
    }
}

static void put(int fd, uint32_t n) {
    struct iovec parts[2] = {{&n, 4}, {buffer, n}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    size_t left = 4u + n;
    while (left) {
        ssize_t sent = sendmsg(fd, &message, 0);
        if (sent < 0) { if (errno == EINTR || errno == EAGAIN) continue; fail("sendmsg"); }
        left -= (size_t)sent;
        while (sent && message.msg_iovlen) {
            size_t first = message.msg_iov->iov_len;
            if ((size_t)sent >= first) { sent -= (ssize_t)first; message.msg_iov++; message.msg_iovlen--; }
            else { message.msg_iov->iov_base = (char *)message.msg_iov->iov_base + sent;
                   message.msg_iov->iov_len -= (size_t)sent; sent = 0; }
        }
    }
}

static int stream(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    if (fd < 0) fail("socket");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static uint32_t frame(int fd) {
    uint32_t n;
    receive(fd, (char *)&n, 4);
    if (n < 4 || n > LIMIT) { fprintf(stderr, "a frame of %u bytes\n", n); exit(1); }
    receive(fd, buffer, n);
    return n;
}

int main(int argc, char **argv) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int one = 1;
    buffer = malloc(LIMIT);
    if (!buffer) fail("malloc");
    memset(buffer, 1, LIMIT);
    if (argc == 3 && !strcmp(argv[1], "serve")) {
        int listener = stream(), fd;
        spin = atoi(argv[2]);
        if (bind(listener, (struct sockaddr *)&at, size) || listen(listener, 1)) fail("listen");
        getsockname(listener, (struct sockaddr *)&at, &size);
        printf("%d\n", ntohs(at.sin_port));
        fflush(stdout);
        fd = accept(listener, 0, 0);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        for (;;) { /* the first four bytes of a request say how long its reply is */
            uint32_t reply;
            frame(fd);
            memcpy(&reply, buffer, 4);
            put(fd, reply);
        }
    }
    if (argc == 7 && !strcmp(argv[1], "ask")) {
        int fd = stream(), rounds = atoi(argv[6]);
        uint32_t n = (uint32_t)atoi(argv[4]), m = (uint32_t)atoi(argv[5]);
        spin = atoi(argv[3]);
        at.sin_port = htons((uint16_t)atoi(argv[2]));
        if (connect(fd, (struct sockaddr *)&at, size)) fail("connect");
        for (int i = 0; i < rounds; i++) {
            struct timespec a, b;
            memcpy(buffer, &m, 4);
            clock_gettime(CLOCK_MONOTONIC, &a);
            put(fd, n);
            frame(fd);
            clock_gettime(CLOCK_MONOTONIC, &b);
            printf("%lld\n", (b.tv_sec - a.tv_sec) * 1000000000LL + (b.tv_nsec - a.tv_nsec));
        }
        return 0;
    }
    fprintf(stderr, "pingpong serve SPIN | ask PORT SPIN N M ROUNDS\n");
    return 2;
}
