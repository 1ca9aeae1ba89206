/* Both ends of the shim in one program, for valgrind and sanitizers:
 *     reconnects [N=10000]
 * N times: connect, one request of 1 to 8 KiB with parts from registered memory and from elsewhere,
 * its reply, hang up. Every hundredth connection times out in the middle of its request, is turned
 * away, or is given up by the listener. Prints what it did; exit status 1 when a byte was wrong. */
#include "shim.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct dsf_terms ours = {1, 1, 1 << 20, 64 << 10};
static char port[8];
static int n_rounds = 10000;
static volatile int is_over;

#define DIES(call)                                                                                 \
    do {                                                                                           \
        fprintf(stderr, "line %d: %s\n", __LINE__, said);                                          \
        exit(1);                                                                                   \
    } while (0)

static void *serve(void *of)
{
    dsf_door *door = of;
    dsf_peer *peer = NULL;
    char said[DSF_SAID];
    size_t n;
    uint32_t op, generation;
    while (!is_over) {
        if (dsf_knocked(door)) {
            if (peer)
                dsf_close_peer(peer);
            peer = dsf_admit(door, said);
        }
        if (!peer)
            continue;
        int got = dsf_receive(peer, &n, &op, &generation, said);
        char *request = dsf_request_memory(door);
        if (got == 1 && op == 2) /* the reply is the request's first bytes, turned around */
            for (size_t i = 0; i < 512; i++)
                request[i] = (char)~request[i];
        if (got == 1 && op == 3)
            continue; /* never answered: the client has to give up */
        if (got < 0 || (got == 1 && (op == 4 || dsf_reply(peer, request, 512, generation, 1000000,
                                                          said)))) {
            dsf_close_peer(peer);
            peer = NULL;
        }
    }
    if (peer)
        dsf_close_peer(peer);
    return NULL;
}

int main(int argc, char **argv)
{
    char said[DSF_SAID], host[64], elsewhere[4096];
    int status, n_timeouts = 0, n_lost = 0, n_refused = 0;
    if (argc > 1)
        n_rounds = atoi(argv[1]);
    dsf_door *door = dsf_bind("tcp", "127.0.0.1", "0", &ours, &status, said);
    if (!door || dsf_listen(door, said))
        DIES();
    snprintf(port, sizeof port, "%d", dsf_name(door, host, sizeof host, said));
    pthread_t server;
    pthread_create(&server, NULL, serve, door);
    char *staging = malloc(8192);
    dsf_side *side = dsf_open("tcp", "127.0.0.1", port, "127.0.0.1", &ours, &status, said);
    if (!side || dsf_register(side, staging, 8192, said))
        DIES();
    struct dsf_terms strange = ours;
    strange.version = 2;
    dsf_side *stranger = dsf_open("tcp", "127.0.0.1", port, NULL, &strange, &status, said);
    if (!stranger)
        DIES();
    for (int i = 0; i < n_rounds; i++) {
        if (i % 100 == 99) {
            if (dsf_dial(stranger, 1000000, &status, said) || !strstr(said, "version"))
                DIES();
            n_refused++;
        }
        dsf_link *link = dsf_dial(side, 5000000, &status, said);
        if (!link)
            DIES();
        memset(staging, i, 8192);
        memset(elsewhere, i + 1, sizeof elsewhere);
        void *parts[3] = {elsewhere, staging + 64, elsewhere};
        size_t lengths[3] = {512, (size_t)(512 + i % 7000), 100};
        uint32_t op = i % 100 == 50 ? 3 : i % 100 == 60 ? 4 : 2;
        int n = dsf_exchange(link, parts, lengths, 3, op, (uint32_t)i, op == 3 ? 2000 : 5000000,
                             i % 2 ? 200 : 0, said);
        if (op == 3 && n == DSF_TIMED_OUT)
            n_timeouts++;
        else if (op == 4 && n == DSF_BROKEN)
            n_lost++;
        else if (op != 2 || n != 512)
            DIES();
        else
            for (int j = 0; j < 512; j++)
                if (((char *)dsf_reply_range(side))[j] != (char)~elsewhere[j])
                    return 1;
        dsf_free_link(link);
    }
    is_over = 1;
    pthread_join(server, NULL);
    dsf_close(stranger);
    dsf_close(side);
    dsf_close_door(door);
    free(staging);
    printf("%d connections, %d timed out, %d given up by the listener, %d turned away\n", n_rounds,
           n_timeouts, n_lost, n_refused);
    return 0;
}
