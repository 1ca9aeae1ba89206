/* See shim.h. What every call needs of libfabric comes first, then the client, then the listener.
 *
 * The immediate word of a request is op << 24 | lowest 24 bits of the generation; of a reply, its
 * length << 15 | lowest 15 bits of the generation. Both fit the 32 bits that verbs carries. The
 * whole generation is in the message itself, as AppHeader.seq.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire is little-endian");

#define API FI_VERSION(1, 14)
#define SERVICE "dspark-v1"
#define HEAD_BYTES 32 /* before a request, so that the body behind its 32 B header begins at 64 */
#define ECHO_US 2000000 /* for the reply before an echo to be gone */
#define LEN_SHIFT 15
#define OP_SHIFT 24
#define MR_MODES (FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY)

/* Private data of a connect, and of the answer to it. */
struct hello {
    char service[16];
    struct dsf_terms terms;
    uint64_t reply_at, reply_key;
};
_Static_assert(sizeof(struct hello) == 48, "verbs carries 56 bytes at most");

struct base { /* an opened domain */
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct dsf_terms own;
    uint64_t next_key;
    int writes_take_receives; /* FI_RX_CQ_DATA: a written reply uses up a posted receive */
};

struct region {
    char *at;
    size_t n;
    struct fid_mr *mr;
};

struct wire { /* an endpoint and its two queues */
    struct fid_fabric *fabric;
    struct fid_eq *eq;
    struct fid_cq *cq;
    struct fid_ep *ep;
    int eq_fd, cq_fd;
    int has_callers_handle; /* it went over to the endpoint, and must not be rejected any more */
    struct fi_context receiving, sending;
};

struct dsf_side {
    struct base base;
    struct region slot, replies, staging;
    int n_users; /* its owner and its links, whoever goes last: a garbage collector has no order */
};

struct dsf_link {
    dsf_side *side;
    struct wire wire;
    struct dsf_terms theirs;
    int has_receive;
};

struct dsf_door {
    struct base base;
    struct region requests, replies;
    struct fid_pep *pep;
    struct fid_eq *eq;
    int fd;
    struct fi_info *caller;
    struct hello callers;
    int n_users; /* its owner and its peer */
};

struct dsf_peer {
    dsf_door *door;
    struct wire wire;
    struct hello theirs;
    int fd, is_sending;
};

/* --- small things --------------------------------------------------------------------------- */

static int64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static int64_t end_of(int64_t timeout_us)
{
    return timeout_us < 0 ? INT64_MAX : now_us() + timeout_us;
}

static int say(char *said, int status, const char *form, ...)
{
    va_list args;
    va_start(args, form);
    vsnprintf(said, DSF_SAID, form, args);
    va_end(args);
    return status;
}

static int status_of(int error)
{
    return error == -FI_EADDRNOTAVAIL ? DSF_NO_ADDRESS : DSF_BROKEN;
}

static int failed(char *said, const char *call, int error)
{
    return say(said, status_of(error), "%s: %s", call, fi_strerror(-error));
}

static void *memory(size_t n)
{
    void *at = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

static void close_fid(void *object)
{
    if (object)
        fi_close(&((struct fid_ep *)object)->fid); /* every object begins with its fid */
}

/* --- domains and memory --------------------------------------------------------------------- */

static struct fi_info *wanted(const char *provider)
{
    struct fi_info *hints = fi_allocinfo();
    if (!hints)
        return NULL;
    hints->ep_attr->type = FI_EP_MSG;
    hints->caps = FI_MSG | FI_RMA;
    hints->mode = FI_CONTEXT | FI_RX_CQ_DATA;
    hints->domain_attr->mr_mode = MR_MODES;
    hints->fabric_attr->prov_name = strdup(provider);
    return hints;
}

static int source_of(struct fi_info *hints, const char *bind, char *said)
{
    struct addrinfo *found, like = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM};
    int error = getaddrinfo(bind, NULL, &like, &found);
    if (error)
        return say(said, DSF_NO_ADDRESS, "%s: %s", bind, gai_strerror(error));
    hints->src_addr = malloc(found->ai_addrlen);
    if (hints->src_addr)
        memcpy(hints->src_addr, found->ai_addr, found->ai_addrlen);
    hints->src_addrlen = found->ai_addrlen;
    hints->addr_format = found->ai_family == AF_INET6 ? FI_SOCKADDR_IN6 : FI_SOCKADDR_IN;
    freeaddrinfo(found);
    return 0;
}

static int open_base(struct base *base, const char *provider, const char *host, const char *port,
                     uint64_t flags, const char *bind, const struct dsf_terms *own, char *said)
{
    struct fi_info *hints = wanted(provider);
    int error = hints ? 0 : -FI_ENOMEM;
    if (!error && bind)
        error = source_of(hints, bind, said);
    if (!error) {
        error = fi_getinfo(API, host, port, flags, hints, &base->info);
        if (error)
            error = say(said, DSF_NO_PROVIDER, "libfabric's provider %s has no way there: %s",
                        provider, fi_strerror(-error));
    }
    if (hints)
        fi_freeinfo(hints);
    if (error)
        return error;
    base->own = *own;
    base->next_key = 1;
    base->writes_take_receives = !!(base->info->mode & FI_RX_CQ_DATA);
    error = fi_fabric(base->info->fabric_attr, &base->fabric, NULL);
    if (error)
        return failed(said, "fi_fabric", error);
    error = fi_domain(base->fabric, base->info, &base->domain, NULL);
    return error ? failed(said, "fi_domain", error) : 0;
}

static void close_base(struct base *base)
{
    close_fid(base->domain);
    close_fid(base->fabric);
    if (base->info)
        fi_freeinfo(base->info);
}

static int register_at(struct base *base, struct region *region, void *at, size_t n,
                       uint64_t access, char *said)
{
    region->at = at;
    region->n = n;
    int error = at ? fi_mr_reg(base->domain, at, n, access, 0, base->next_key++, 0, &region->mr,
                               NULL)
                   : -FI_ENOMEM;
    return error ? failed(said, "registering memory (is memlock unlimited?)", error) : 0;
}

static void forget(struct region *region, int is_ours)
{
    close_fid(region->mr);
    if (region->at && is_ours)
        munmap(region->at, region->n);
}

/* --- endpoints ------------------------------------------------------------------------------ */

static void close_wire(struct wire *wire)
{
    if (wire->ep)
        fi_shutdown(wire->ep, 0);
    close_fid(wire->ep);
    close_fid(wire->cq);
    close_fid(wire->eq);
    wire->ep = NULL;
    wire->cq = NULL;
    wire->eq = NULL;
}

static int open_wire(struct wire *wire, const struct base *base, struct fi_info *info, char *said)
{
    struct fi_eq_attr of_events = {.wait_obj = FI_WAIT_FD};
    struct fi_cq_attr of_work = {.wait_obj = FI_WAIT_FD, .format = FI_CQ_FORMAT_DATA, .size = 64};
    const char *call = "fi_endpoint";
    wire->fabric = base->fabric;
    int error = fi_endpoint(base->domain, info, &wire->ep, NULL);
    wire->has_callers_handle = !error;
    if (!error && (call = "fi_eq_open", error = fi_eq_open(base->fabric, &of_events, &wire->eq,
                                                           NULL)) == 0 &&
        (call = "fi_cq_open", error = fi_cq_open(base->domain, &of_work, &wire->cq, NULL)) == 0 &&
        (call = "fi_ep_bind", error = fi_ep_bind(wire->ep, &wire->eq->fid, 0)) == 0 &&
        (error = fi_ep_bind(wire->ep, &wire->cq->fid, FI_TRANSMIT | FI_RECV)) == 0 &&
        (call = "fi_enable", error = fi_enable(wire->ep)) == 0 &&
        (call = "FI_GETWAIT", error = fi_control(&wire->eq->fid, FI_GETWAIT, &wire->eq_fd)) == 0)
        error = fi_control(&wire->cq->fid, FI_GETWAIT, &wire->cq_fd);
    if (!error)
        return 0;
    close_wire(wire);
    return failed(said, call, error);
}

static int may_sleep(struct wire *wire)
{
    struct fid *both[2] = {&wire->cq->fid, &wire->eq->fid};
    return fi_trywait(wire->fabric, both, 2) == FI_SUCCESS;
}

static void sleep_until(struct wire *wire, int64_t end_us)
{
    struct pollfd fds[2] = {{wire->cq_fd, POLLIN, 0}, {wire->eq_fd, POLLIN, 0}};
    int64_t left = end_us - now_us();
    if (left <= 0 || !may_sleep(wire))
        return;
    struct timespec for_so_long = {left / 1000000, left % 1000000 * 1000};
    ppoll(fds, 2, end_us == INT64_MAX ? NULL : &for_so_long, NULL);
}

/* What the event queue says of a connection that stands: 0 nothing, or DSF_BROKEN. */
static int events(struct wire *wire, char *said)
{
    uint32_t event;
    struct fi_eq_cm_entry entry;
    ssize_t n = fi_eq_read(wire->eq, &event, &entry, sizeof entry, 0);
    if (n == -FI_EAGAIN)
        return 0;
    if (n == -FI_EAVAIL) {
        struct fi_eq_err_entry error = {0};
        fi_eq_readerr(wire->eq, &error, 0);
        return say(said, DSF_BROKEN, "the connection was lost: %s", fi_strerror(error.err));
    }
    if (n >= 0 && event == FI_CONNECTED)
        return 0;
    return say(said, DSF_BROKEN, "the peer closed the connection");
}

/* One completion: 1, or 0 when there is none, or DSF_BROKEN. */
static int completed(struct wire *wire, struct fi_cq_data_entry *entry, char *said)
{
    ssize_t n = fi_cq_read(wire->cq, entry, 1);
    if (n == 1)
        return 1;
    if (n == -FI_EAVAIL) {
        struct fi_cq_err_entry error = {0};
        fi_cq_readerr(wire->cq, &error, 0);
        if (error.err == FI_ECANCELED || error.err == FI_ECONNRESET || error.err == FI_ENOTCONN)
            return say(said, DSF_BROKEN, "the peer closed the connection");
        if (error.err == FI_ETRUNC || error.err == FI_EMSGSIZE || error.err == FI_ETOOSMALL)
            return say(said, DSF_BROKEN, "a message came that is longer than was agreed");
        return say(said, DSF_BROKEN, "the connection was lost: %s", fi_strerror(error.err));
    }
    if (n != -FI_EAGAIN)
        return failed(said, "fi_cq_read", (int)n);
    return events(wire, said);
}

static int post_receive(struct wire *wire, struct region *region, size_t offset, char *said)
{
    ssize_t error = region ? fi_recv(wire->ep, region->at + offset, region->n - offset,
                                     fi_mr_desc(region->mr), 0, &wire->receiving)
                           : fi_recv(wire->ep, NULL, 0, NULL, 0, &wire->receiving);
    return error ? failed(said, "fi_recv", (int)error) : 0;
}

static void introduce(struct hello *hello, const struct base *base)
{
    memset(hello, 0, sizeof *hello);
    strcpy(hello->service, SERVICE);
    hello->terms = base->own;
}

static int suits(const struct hello *theirs, size_t n, const struct base *base, char *said)
{
    if (n < sizeof *theirs || memcmp(theirs->service, SERVICE, sizeof SERVICE))
        return say(said, DSF_BROKEN, "the peer does not speak %s", SERVICE);
    if (theirs->terms.version != base->own.version)
        return say(said, DSF_BROKEN, "the peer speaks version %u of %s, this is version %u",
                   theirs->terms.version, SERVICE, base->own.version);
    if (!theirs->terms.max_inflight || !theirs->terms.max_req_bytes || !theirs->terms.max_resp_bytes)
        return say(said, DSF_BROKEN, "the peer takes no requests: a limit of it is 0");
    return 0;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* --- what there is -------------------------------------------------------------------------- */

#ifndef DSF_SOURCES
#define DSF_SOURCES "unnamed"
#endif

uint32_t dsf_version(void)
{
    return fi_version();
}

void dsf_load_providers(void)
{
    struct fi_info *found = NULL, *hints = wanted("tcp");
    if (hints && !fi_getinfo(API, NULL, NULL, 0, hints, &found))
        fi_freeinfo(found);
    if (hints)
        fi_freeinfo(hints);
}

const char *dsf_sources(void)
{
    return DSF_SOURCES;
}

int dsf_interfaces(const char *provider, char *text, size_t n_text, char *said)
{
    struct fi_info *hints = wanted(provider), *found = NULL;
    size_t n_held = 0;
    int error = hints ? fi_getinfo(API, NULL, NULL, 0, hints, &found) : -FI_ENOMEM;
    if (hints)
        fi_freeinfo(hints);
    if (error == -FI_ENODATA)
        return 0;
    if (error)
        return failed(said, "fi_getinfo", error);
    for (struct fi_info *one = found; one; one = one->next) {
        char address[INET6_ADDRSTRLEN] = "";
        if (one->addr_format == FI_SOCKADDR_IN && one->src_addr)
            inet_ntop(AF_INET, &((struct sockaddr_in *)one->src_addr)->sin_addr, address,
                      sizeof address);
        if (one->addr_format == FI_SOCKADDR_IN6 && one->src_addr)
            inet_ntop(AF_INET6, &((struct sockaddr_in6 *)one->src_addr)->sin6_addr, address,
                      sizeof address);
        int n = snprintf(text + n_held, n_text - n_held, "%s\t%s\t%s\t%s\n",
                         one->fabric_attr->prov_name, one->fabric_attr->name,
                         one->domain_attr->name, address);
        if (n < 0 || n_held + n >= n_text)
            break;
        n_held += n;
    }
    fi_freeinfo(found);
    return (int)n_held;
}

/* --- the client ----------------------------------------------------------------------------- */

dsf_side *dsf_open(const char *provider, const char *host, const char *port, const char *bind,
                   const struct dsf_terms *own, int *status, char *said)
{
    dsf_side *side = calloc(1, sizeof *side);
    if (!side) {
        *status = say(said, DSF_BROKEN, "no memory");
        return NULL;
    }
    side->n_users = 1;
    *status = open_base(&side->base, provider, host, port, 0, bind, own, said);
    if (!*status)
        *status = register_at(&side->base, &side->slot, memory(own->max_req_bytes),
                              own->max_req_bytes, FI_SEND, said);
    if (!*status)
        *status = register_at(&side->base, &side->replies, memory(own->max_resp_bytes),
                              own->max_resp_bytes, FI_REMOTE_WRITE, said);
    if (!*status)
        return side;
    dsf_close(side);
    return NULL;
}

int dsf_register(dsf_side *side, void *at, size_t n, char *said)
{
    return register_at(&side->base, &side->staging, at, n, FI_SEND, said);
}

void dsf_close(dsf_side *side)
{
    if (--side->n_users)
        return;
    forget(&side->staging, 0);
    forget(&side->replies, 1);
    forget(&side->slot, 1);
    close_base(&side->base);
    free(side);
}

void *dsf_reply_range(const dsf_side *side)
{
    return side->replies.at;
}

void dsf_theirs(const dsf_link *link, struct dsf_terms *theirs)
{
    *theirs = link->theirs;
}

/* Waits until the listener has accepted, and takes its terms. */
static int accepted(dsf_link *link, int64_t end_us, char *said)
{
    struct {
        struct fi_eq_cm_entry entry;
        struct hello theirs;
        char more[256];
    } got;
    const struct base *base = &link->side->base;
    struct fid *queue = &link->wire.eq->fid;
    for (;;) {
        uint32_t event = 0;
        ssize_t n = fi_eq_read(link->wire.eq, &event, &got, sizeof got, 0);
        if (n == -FI_EAVAIL) {
            struct fi_eq_err_entry error = {.err_data = &got.theirs,
                                            .err_data_size = sizeof got.theirs};
            fi_eq_readerr(link->wire.eq, &error, 0);
            if (error.err_data_size >= sizeof got.theirs && error.err_data) {
                memmove(&got.theirs, error.err_data, sizeof got.theirs);
                if (suits(&got.theirs, sizeof got.theirs, base, said))
                    return DSF_BROKEN;
            }
            if (error.err == FI_ECONNREFUSED)
                return say(said, DSF_BROKEN, "connection refused: nobody listens there");
            return say(said, status_of(-error.err), "no connection: %s", fi_strerror(error.err));
        }
        if (n >= 0 && event == FI_CONNECTED) {
            size_t n_data = (size_t)n - sizeof got.entry;
            int status = suits(&got.theirs, n_data, base, said);
            link->theirs = got.theirs.terms;
            return status;
        }
        if (n != -FI_EAGAIN)
            return say(said, DSF_BROKEN, "the peer closed the connection");
        int64_t left = end_us - now_us();
        if (left <= 0)
            return say(said, DSF_TIMED_OUT, "no connection in time");
        if (fi_trywait(link->wire.fabric, &queue, 1) == FI_SUCCESS) {
            struct pollfd fd = {link->wire.eq_fd, POLLIN, 0};
            struct timespec for_so_long = {left / 1000000, left % 1000000 * 1000};
            ppoll(&fd, 1, &for_so_long, NULL);
        }
    }
}

dsf_link *dsf_dial(dsf_side *side, int64_t timeout_us, int *status, char *said)
{
    int64_t end_us = end_of(timeout_us);
    struct hello own;
    dsf_link *link = calloc(1, sizeof *link);
    if (!link) {
        *status = say(said, DSF_BROKEN, "no memory");
        return NULL;
    }
    link->side = side;
    side->n_users++;
    introduce(&own, &side->base);
    own.reply_at = side->base.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR
                       ? (uint64_t)(uintptr_t)side->replies.at
                       : 0;
    own.reply_key = fi_mr_key(side->replies.mr);
    *status = open_wire(&link->wire, &side->base, side->base.info, said);
    if (!*status && side->base.writes_take_receives) {
        *status = post_receive(&link->wire, NULL, 0, said);
        link->has_receive = 1;
    }
    if (!*status) {
        int error = fi_connect(link->wire.ep, side->base.info->dest_addr, &own, sizeof own);
        *status = error ? failed(said, "fi_connect", error) : accepted(link, end_us, said);
    }
    if (!*status)
        return link;
    dsf_free_link(link);
    return NULL;
}

void dsf_hang_up(dsf_link *link)
{
    close_wire(&link->wire);
}

void dsf_free_link(dsf_link *link)
{
    dsf_hang_up(link);
    dsf_close(link->side);
    free(link);
}

static int nothing_stray(dsf_link *link, char *said)
{
    struct fi_cq_data_entry entry;
    int n = completed(&link->wire, &entry, said);
    return n > 0 ? say(said, DSF_BROKEN, "a reply came that no request asked for") : n;
}

int dsf_check(dsf_link *link, char *said)
{
    if (!link->wire.ep)
        return say(said, DSF_BROKEN, "the connection was given up");
    int status = nothing_stray(link, said);
    if (status)
        dsf_hang_up(link);
    return status;
}

/* The parts as a gather list: those in registered memory where they lie, others in the slot. */
static int gather(dsf_side *side, void **parts, size_t *n_bytes, int n_parts, size_t n_total,
                  struct iovec *pieces, void **descs)
{
    size_t limit = side->base.info->tx_attr->iov_limit, n_copied = 0;
    int n = 0, is_in_slot = 0; /* the last piece */
    for (int i = 0; i < n_parts; i++) {
        char *at = parts[i];
        struct region *staged = &side->staging;
        int lies_there = staged->mr && at >= staged->at && n_bytes[i] <= staged->n &&
                         (size_t)(at - staged->at) <= staged->n - n_bytes[i];
        if (!n_bytes[i])
            continue;
        if (!lies_there) {
            at = memcpy(side->slot.at + n_copied, at, n_bytes[i]);
            n_copied += n_bytes[i];
        }
        if (is_in_slot && !lies_there) {
            pieces[n - 1].iov_len += n_bytes[i];
            continue;
        }
        is_in_slot = !lies_there;
        if ((size_t)n == limit) { /* more pieces than the device gathers: one piece of copies */
            n_copied = 0;
            for (int j = 0; j < n_parts; n_copied += n_bytes[j++])
                memmove(side->slot.at + n_copied, parts[j], n_bytes[j]);
            pieces[0] = (struct iovec){side->slot.at, n_total};
            descs[0] = fi_mr_desc(side->slot.mr);
            return 1;
        }
        pieces[n] = (struct iovec){at, n_bytes[i]};
        descs[n++] = fi_mr_desc(lies_there ? staged->mr : side->slot.mr);
    }
    return n;
}

static int exchanged(dsf_link *link, void **parts, size_t *n_bytes, int n_parts, size_t n_total,
                     uint32_t op, uint32_t generation, int64_t end_us, int64_t spin_us, char *said)
{
    dsf_side *side = link->side;
    struct wire *wire = &link->wire;
    struct iovec pieces[DSF_MAX_PARTS];
    void *descs[DSF_MAX_PARTS];
    int status = nothing_stray(link, said);
    if (!status && side->base.writes_take_receives && !link->has_receive) {
        status = post_receive(wire, NULL, 0, said);
        link->has_receive = 1;
    }
    if (status)
        return status;
    struct fi_msg message = {
        .msg_iov = pieces,
        .desc = descs,
        .iov_count = (size_t)gather(side, parts, n_bytes, n_parts, n_total, pieces, descs),
        .context = &wire->sending,
        .data = op << OP_SHIFT | (generation & ((1u << OP_SHIFT) - 1)),
    };
    int is_posted = 0, is_sent = 0, n_reply = -1;
    int64_t spin_until_us = spin_us ? now_us() + spin_us : 0;
    while (!is_sent || n_reply < 0) {
        if (!is_posted) {
            ssize_t error = fi_sendmsg(wire->ep, &message, FI_REMOTE_CQ_DATA | FI_COMPLETION);
            if (error && error != -FI_EAGAIN)
                return failed(said, "fi_sendmsg", (int)error);
            is_posted = !error;
        }
        struct fi_cq_data_entry entry;
        int n = completed(wire, &entry, said);
        if (n < 0)
            return n;
        if (!n) {
            int64_t now = now_us();
            if (now >= end_us)
                return say(said, DSF_TIMED_OUT, "no whole answer in time");
            if (now >= spin_until_us)
                sleep_until(wire, end_us);
        } else if (!(entry.flags & FI_REMOTE_CQ_DATA)) {
            is_sent = 1;
        } else {
            link->has_receive = 0;
            uint32_t n_said = (uint32_t)entry.data >> LEN_SHIFT;
            if (n_reply >= 0 || ((entry.data ^ generation) & ((1u << LEN_SHIFT) - 1)))
                return say(said, DSF_BROKEN, "a reply came to another request");
            if (n_said > side->base.own.max_resp_bytes)
                return say(said, DSF_BROKEN, "a reply of %u bytes, more than was agreed", n_said);
            n_reply = (int)n_said;
        }
    }
    return n_reply;
}

int dsf_exchange(dsf_link *link, void **parts, size_t *n_bytes, int n_parts, uint32_t op,
                 uint32_t generation, int64_t timeout_us, int64_t spin_us, char *said)
{
    int64_t end_us = end_of(timeout_us);
    size_t n_total = 0;
    if (!link->wire.ep)
        return say(said, DSF_BROKEN, "the connection was given up");
    for (int i = 0; i < n_parts; i++)
        n_total += n_bytes[i];
    uint32_t limit = least(link->theirs.max_req_bytes, link->side->base.own.max_req_bytes);
    if (!op)
        limit = least(limit, link->theirs.max_resp_bytes);
    int status = n_total > limit || n_parts > DSF_MAX_PARTS
                     ? say(said, DSF_OVERSIZE,
                           "a message of %zu bytes is longer than the %u that are taken there; "
                           "nothing was sent", n_total, limit)
                     : exchanged(link, parts, n_bytes, n_parts, n_total, op, generation, end_us,
                                 spin_us, said);
    if (status < 0)
        dsf_hang_up(link); /* before the call returns: a late reply must not land (§5) */
    return status;
}

/* --- the listener --------------------------------------------------------------------------- */

dsf_door *dsf_bind(const char *provider, const char *host, const char *port,
                   const struct dsf_terms *own, int *status, char *said)
{
    struct fi_eq_attr of_events = {.wait_obj = FI_WAIT_FD};
    size_t n_requests = HEAD_BYTES + (size_t)own->max_req_bytes;
    dsf_door *door = calloc(1, sizeof *door);
    if (!door) {
        *status = say(said, DSF_BROKEN, "no memory");
        return NULL;
    }
    door->n_users = 1;
    *status = open_base(&door->base, provider, host, port, FI_SOURCE, NULL, own, said);
    if (!*status) {
        int error = fi_eq_open(door->base.fabric, &of_events, &door->eq, NULL);
        if (!error)
            error = fi_control(&door->eq->fid, FI_GETWAIT, &door->fd);
        if (!error)
            error = fi_passive_ep(door->base.fabric, door->base.info, &door->pep, NULL);
        if (!error)
            error = fi_pep_bind(door->pep, &door->eq->fid, 0);
        if (error)
            *status = say(said, status_of(error), "%s", fi_strerror(-error));
    }
    if (!*status)
        *status = register_at(&door->base, &door->requests, memory(n_requests), n_requests,
                              FI_RECV, said);
    if (!*status)
        *status = register_at(&door->base, &door->replies, memory(own->max_resp_bytes),
                              own->max_resp_bytes, FI_WRITE, said);
    if (!*status)
        return door;
    dsf_close_door(door);
    return NULL;
}

int dsf_listen(dsf_door *door, char *said)
{
    int error = fi_listen(door->pep);
    return error ? say(said, status_of(error), "%s", fi_strerror(-error)) : 0;
}

int dsf_name(const dsf_door *door, char *host, size_t n_host, char *said)
{
    struct sockaddr_storage name;
    size_t n = sizeof name;
    char port[8];
    int error = fi_getname(&door->pep->fid, &name, &n);
    if (error)
        return failed(said, "fi_getname", error);
    error = getnameinfo((struct sockaddr *)&name, (socklen_t)n, host, (socklen_t)n_host, port,
                        sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    return error ? say(said, DSF_BROKEN, "%s", gai_strerror(error)) : atoi(port);
}

int dsf_door_fd(const dsf_door *door)
{
    return door->fd;
}

int dsf_door_may_sleep(dsf_door *door)
{
    struct fid *queue = &door->eq->fid;
    return fi_trywait(door->base.fabric, &queue, 1) == FI_SUCCESS;
}

static void turn_away(dsf_door *door, struct fi_info *caller)
{
    struct hello own;
    introduce(&own, &door->base);
    fi_reject(door->pep, caller->handle, &own, sizeof own);
    fi_freeinfo(caller);
}

int dsf_knocked(dsf_door *door)
{
    struct {
        struct fi_eq_cm_entry entry;
        struct hello theirs;
        char more[256];
    } got;
    char why[DSF_SAID];
    for (;;) {
        uint32_t event = 0;
        ssize_t n = fi_eq_read(door->eq, &event, &got, sizeof got, 0);
        if (n == -FI_EAVAIL) {
            struct fi_eq_err_entry error = {0};
            fi_eq_readerr(door->eq, &error, 0);
            continue;
        }
        if (n < 0)
            return door->caller != NULL;
        if (event != FI_CONNREQ)
            continue;
        if (suits(&got.theirs, (size_t)n - sizeof got.entry, &door->base, why)) {
            turn_away(door, got.entry.info);
            continue;
        }
        if (door->caller)
            turn_away(door, door->caller);
        door->caller = got.entry.info;
        door->callers = got.theirs;
    }
}

dsf_peer *dsf_admit(dsf_door *door, char *said)
{
    struct hello own;
    struct epoll_event readable = {.events = EPOLLIN};
    dsf_peer *peer = calloc(1, sizeof *peer);
    if (!peer || !door->caller) {
        free(peer);
        say(said, DSF_BROKEN, "nobody asked to be connected");
        return NULL;
    }
    introduce(&own, &door->base);
    peer->door = door;
    door->n_users++;
    peer->theirs = door->callers;
    peer->fd = epoll_create1(EPOLL_CLOEXEC);
    int status = open_wire(&peer->wire, &door->base, door->caller, said);
    if (!status && (peer->fd < 0 ||
                    epoll_ctl(peer->fd, EPOLL_CTL_ADD, peer->wire.cq_fd, &readable) ||
                    epoll_ctl(peer->fd, EPOLL_CTL_ADD, peer->wire.eq_fd, &readable)))
        status = say(said, DSF_BROKEN, "epoll: %s", strerror(errno));
    if (!status)
        status = post_receive(&peer->wire, &door->requests, HEAD_BYTES, said);
    if (!status) {
        int error = fi_accept(peer->wire.ep, &own, sizeof own);
        if (error)
            status = failed(said, "fi_accept", error);
    }
    if (peer->wire.has_callers_handle)
        fi_freeinfo(door->caller);
    else
        turn_away(door, door->caller);
    door->caller = NULL;
    if (!status)
        return peer;
    dsf_close_peer(peer);
    return NULL;
}

void *dsf_request_memory(const dsf_door *door)
{
    return door->requests.at + HEAD_BYTES;
}

static void leave(dsf_door *door)
{
    if (--door->n_users)
        return;
    close_fid(door->eq);
    forget(&door->requests, 1);
    forget(&door->replies, 1);
    close_base(&door->base);
    free(door);
}

void dsf_close_door(dsf_door *door)
{
    if (door->caller)
        turn_away(door, door->caller);
    door->caller = NULL;
    close_fid(door->pep); /* the address is free at once */
    door->pep = NULL;
    leave(door);
}

int dsf_peer_fd(const dsf_peer *peer)
{
    return peer->fd;
}

int dsf_peer_may_sleep(dsf_peer *peer)
{
    return may_sleep(&peer->wire);
}

int dsf_receive(dsf_peer *peer, size_t *n_bytes, uint32_t *op, uint32_t *generation, char *said)
{
    for (;;) {
        struct fi_cq_data_entry entry;
        int n = completed(&peer->wire, &entry, said);
        if (n <= 0)
            return n;
        if (!(entry.flags & FI_RECV)) {
            peer->is_sending = 0;
            continue;
        }
        if (!(entry.flags & FI_REMOTE_CQ_DATA))
            return say(said, DSF_BROKEN, "a message came that is no request");
        *n_bytes = entry.len;
        *op = (uint32_t)entry.data >> OP_SHIFT;
        *generation = (uint32_t)entry.data & ((1u << OP_SHIFT) - 1);
        if (*op)
            return 1;
        if (*n_bytes > least(peer->theirs.terms.max_resp_bytes, peer->door->base.own.max_resp_bytes))
            return say(said, DSF_BROKEN, "an echo of %zu bytes, more than was agreed", *n_bytes);
        n = dsf_reply(peer, dsf_request_memory(peer->door), *n_bytes, *generation,
                      ECHO_US, said);
        if (n)
            return n;
    }
}

int dsf_reply(dsf_peer *peer, const void *reply, size_t n_bytes, uint32_t generation,
              int64_t timeout_us, char *said)
{
    dsf_door *door = peer->door;
    struct wire *wire = &peer->wire;
    int64_t end_us = end_of(timeout_us);
    if (n_bytes > least(peer->theirs.terms.max_resp_bytes, door->base.own.max_resp_bytes))
        return say(said, DSF_OVERSIZE, "a reply of %zu bytes is longer than was agreed", n_bytes);
    while (peer->is_sending) { /* the reply before this one */
        struct fi_cq_data_entry entry;
        int n = completed(wire, &entry, said);
        if (n < 0)
            return n;
        if (n)
            peer->is_sending = 0;
        else if (now_us() >= end_us)
            return say(said, DSF_TIMED_OUT, "the peer does not take its replies");
        else
            sleep_until(wire, end_us);
    }
    memcpy(door->replies.at, reply, n_bytes);
    /* Whoever sees its reply may send at once: the next receive has to be there by then. */
    int status = post_receive(wire, &door->requests, HEAD_BYTES, said);
    if (status)
        return status;
    struct iovec piece = {door->replies.at, n_bytes};
    struct fi_rma_iov there = {peer->theirs.reply_at, n_bytes, peer->theirs.reply_key};
    void *desc = fi_mr_desc(door->replies.mr);
    struct fi_msg_rma message = {
        .msg_iov = &piece,
        .desc = &desc,
        .iov_count = 1,
        .rma_iov = &there,
        .rma_iov_count = 1,
        .context = &wire->sending,
        .data = (uint32_t)n_bytes << LEN_SHIFT | (generation & ((1u << LEN_SHIFT) - 1)),
    };
    ssize_t error = fi_writemsg(wire->ep, &message, FI_REMOTE_CQ_DATA | FI_COMPLETION);
    if (error)
        return failed(said, "fi_writemsg", (int)error);
    peer->is_sending = 1;
    return 0;
}

void dsf_close_peer(dsf_peer *peer)
{
    close_wire(&peer->wire);
    if (peer->fd >= 0)
        close(peer->fd);
    leave(peer->door);
    free(peer);
}
