/* The same round trips as pingpong.c over libfabric's tcp provider, both ends in C:
 *     fabric_pingpong serve SPIN            prints its port
 *     fabric_pingpong ask PORT SPIN N M ROUNDS
 * Linked with the project's shim: what is compared is what Python adds to it. */
#include "shim.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const struct dsf_terms terms = {1, 1, 16 << 20, 64 << 10};
static char said[DSF_SAID];

static void die(void)
{
    fprintf(stderr, "%s\n", said);
    exit(1);
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void serve(int spin)
{
    int status;
    char host[64], reply[64 << 10] = {0};
    size_t n;
    uint32_t op, generation;
    dsf_peer *peer = NULL;
    dsf_door *door = dsf_bind("tcp", "127.0.0.1", "0", &terms, &status, said);
    if (!door || dsf_listen(door, said))
        die();
    printf("%d\n", dsf_name(door, host, sizeof host, said));
    fflush(stdout);
    while (!dsf_knocked(door))
        ;
    peer = dsf_admit(door, said);
    for (;;) {
        int got = peer ? dsf_receive(peer, &n, &op, &generation, said) : -1;
        if (got < 0)
            exit(0);
        /* the first four bytes of a request say how long its reply is */
        if (got && dsf_reply(peer, reply, *(uint32_t *)dsf_request_memory(door), generation,
                             1000000, said))
            die();
        struct pollfd fd = {dsf_peer_fd(peer), POLLIN, 0};
        if (!got && !spin && dsf_peer_may_sleep(peer))
            poll(&fd, 1, -1);
    }
}

static void ask(const char *port, int spin, size_t n_bytes, uint32_t n_reply, int n_rounds)
{
    int status;
    void *parts[1] = {calloc(1, n_bytes)};
    memcpy(parts[0], &n_reply, sizeof n_reply);
    dsf_side *side = dsf_open("tcp", "127.0.0.1", port, NULL, &terms, &status, said);
    if (!side || dsf_register(side, parts[0], n_bytes, said))
        die();
    dsf_link *link = dsf_dial(side, 5000000, &status, said);
    if (!link)
        die();
    for (int i = 0; i < n_rounds; i++) {
        int64_t start = now_ns();
        if (dsf_exchange(link, parts, &n_bytes, 1, 2, (uint32_t)i, 5000000, spin ? 1000000 : 0,
                         said) < 0)
            die();
        printf("%lld\n", (long long)(now_ns() - start));
    }
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "serve"))
        serve(atoi(argv[2]));
    else if (argc == 7 && !strcmp(argv[1], "ask"))
        ask(argv[2], atoi(argv[3]), strtoul(argv[4], NULL, 10), (uint32_t)atoi(argv[5]),
            atoi(argv[6]));
    else
        return 2;
    return 0;
}
