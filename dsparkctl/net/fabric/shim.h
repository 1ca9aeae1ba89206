/* ofl semantics (contract §5) on libfabric's FI_EP_MSG, as few calls as a round needs.
 *
 * Every call that can fail returns a negative `dsf_status` or NULL and writes one line into `said`,
 * DSF_SAID bytes long. No call is safe for two threads at a time on one object. Times are in
 * microseconds; a negative one never comes.
 */
#ifndef DSF_SHIM_H
#define DSF_SHIM_H
#include <stddef.h>
#include <stdint.h>

#define DSF_SAID 256
#define DSF_MAX_PARTS 16

enum dsf_status {
    DSF_TIMED_OUT = -1,  /* the deadline passed */
    DSF_BROKEN = -2,     /* no connection, or a lost one */
    DSF_OVERSIZE = -3,   /* longer than the other side takes; nothing was sent */
    DSF_NO_ADDRESS = -4, /* this host does not have the address */
    DSF_NO_PROVIDER = -5 /* no device or provider for it */
};

/* What both sides say at connect. */
struct dsf_terms {
    uint32_t version, max_inflight, max_req_bytes, max_resp_bytes;
};

typedef struct dsf_side dsf_side; /* a client's domain and its registered memory, kept for good */
typedef struct dsf_link dsf_link; /* one connection of a client */
typedef struct dsf_door dsf_door; /* a listener with its registered receive and reply memory */
typedef struct dsf_peer dsf_peer; /* the one connection of a listener */

/* --- what there is -------------------------------------------------------------------------- */

/* "provider\tfabric\tdomain\taddress\n" for each interface on which FI_EP_MSG can be had. */
int dsf_interfaces(const char *provider, char *text, size_t n_text, char *said);
uint32_t dsf_version(void); /* of the libfabric that runs: major << 16 | minor */
void dsf_load_providers(void); /* otherwise the first call that needs one does */
const char *dsf_sources(void); /* digest of the sources that this was built of */

/* --- the client ----------------------------------------------------------------------------- */

/* `bind` may be NULL. `*status` tells why there is none. */
dsf_side *dsf_open(const char *provider, const char *host, const char *port, const char *bind,
                   const struct dsf_terms *own, int *status, char *said);
/* Memory from which parts of messages are sent where they lie; once for a side. */
int dsf_register(dsf_side *side, void *memory, size_t n_bytes, char *said);
void dsf_close(dsf_side *side); /* what it holds goes with the last of its links */

dsf_link *dsf_dial(dsf_side *side, int64_t timeout_us, int *status, char *said);
void dsf_theirs(const dsf_link *link, struct dsf_terms *theirs);
/* Sends the parts as one request; the length of its reply, which lies in `dsf_reply_range`. After a
 * negative status the endpoint is gone: no late reply lands. */
int dsf_exchange(dsf_link *link, void **parts, size_t *n_bytes, int n_parts, uint32_t op,
                 uint32_t generation, int64_t timeout_us, int64_t spin_us, char *said);
/* 0, or DSF_BROKEN when the peer is gone or something came that nobody asked for. */
int dsf_check(dsf_link *link, char *said);
void *dsf_reply_range(const dsf_side *side);
void dsf_hang_up(dsf_link *link); /* the endpoint goes; a second time does nothing */
void dsf_free_link(dsf_link *link);

/* --- the listener --------------------------------------------------------------------------- */

/* The address is taken, and refuses everybody until `dsf_listen`. */
dsf_door *dsf_bind(const char *provider, const char *host, const char *port,
                   const struct dsf_terms *own, int *status, char *said);
int dsf_listen(dsf_door *door, char *said);
int dsf_name(const dsf_door *door, char *host, size_t n_host, char *said); /* the port */
int dsf_door_fd(const dsf_door *door);
int dsf_door_may_sleep(dsf_door *door);
/* Whether somebody asks to be connected, on our terms; others are turned away here. */
int dsf_knocked(dsf_door *door);
/* Connects the last one that knocked. The peer before it must have been closed. */
dsf_peer *dsf_admit(dsf_door *door, char *said);
void *dsf_request_memory(const dsf_door *door); /* 64-aligned message + 32: a body begins at 64 */
void dsf_close_door(dsf_door *door); /* what it holds goes with its peer */

int dsf_peer_fd(const dsf_peer *peer);
int dsf_peer_may_sleep(dsf_peer *peer);
/* 1 when a whole request lies in the memory, 0 when none does; an echo is answered here. */
int dsf_receive(dsf_peer *peer, size_t *n_bytes, uint32_t *op, uint32_t *generation, char *said);
/* Posts the next receive, then writes the reply into the client's range. */
int dsf_reply(dsf_peer *peer, const void *reply, size_t n_bytes, uint32_t generation,
              int64_t timeout_us, char *said);
void dsf_close_peer(dsf_peer *peer);
#endif
