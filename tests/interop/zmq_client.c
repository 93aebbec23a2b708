/* The C API of the system's libzmq against the one_port example.
 *
 * Usage: zmq_client ENDPOINT [USER PASSWORD]. Prints one row of the table per check, tab-separated; exits with 1 if
 * any failed. Nothing is waited for longer than PATIENCE_MS.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

enum { PATIENCE_MS = 20000, MESSAGES = 10000, IN_FLIGHT = 200, LARGEST = 1 << 20 };

static void *context;
static const char *endpoint, *user, *password;
static char why[512];

#define DEMAND(truth, ...)                            \
    do {                                              \
        if (!(truth)) {                               \
            snprintf(why, sizeof why, __VA_ARGS__);   \
            return 1;                                 \
        }                                             \
    } while (0)

/* Payloads of any size that differ from each other. */
static unsigned char pool[2 * LARGEST];

static void fill_pool(void) {
    uint32_t x = 2463534242u;
    for (size_t i = 0; i < sizeof pool; i++) {
        x ^= x << 13, x ^= x >> 17, x ^= x << 5;
        pool[i] = (unsigned char)x;
    }
}

static const unsigned char *body(uint32_t n) { return pool + n * 7919u % LARGEST; }

/* Mostly small; every fiftieth at an edge, up to 1 MiB. */
static size_t size_of(uint32_t n) {
    static const size_t edges[] = {0, 1, 254, 255, 256, 2047, 2048, 2049, 65535, 65536, LARGEST - 1, LARGEST};
    if (n % 50 == 0) return edges[n / 50 % (sizeof edges / sizeof *edges)];
    return n * 2654435761u % (n % 3 ? 512 : 16384);
}

static void *connected(int kind) {
    void *s = zmq_socket(context, kind);
    int patience = PATIENCE_MS, zero = 0;
    zmq_setsockopt(s, ZMQ_RCVTIMEO, &patience, sizeof patience);
    zmq_setsockopt(s, ZMQ_SNDTIMEO, &patience, sizeof patience);
    zmq_setsockopt(s, ZMQ_LINGER, &zero, sizeof zero);
    if (user) {
        zmq_setsockopt(s, ZMQ_PLAIN_USERNAME, user, strlen(user));
        zmq_setsockopt(s, ZMQ_PLAIN_PASSWORD, password, strlen(password));
    }
    if (kind == ZMQ_DEALER) zmq_setsockopt(s, ZMQ_IDENTITY, "c-client", 8);
    zmq_connect(s, endpoint);
    return s;
}

static int send_request(void *dealer, uint32_t n) {
    return zmq_send(dealer, &n, sizeof n, ZMQ_SNDMORE) < 0 || zmq_send(dealer, "", 0, ZMQ_SNDMORE) < 0 ||
           zmq_send(dealer, "echo", 4, ZMQ_SNDMORE) < 0 || zmq_send(dealer, body(n), size_of(n), 0) < 0;
}

/* The envelope, `ok`, the same bytes. */
static int check_answer(void *dealer, uint32_t n) {
    uint32_t label = 0;
    char word[8];
    DEMAND(zmq_recv(dealer, &label, sizeof label, 0) == sizeof label && label == n, "answer %u is of %u", n, label);
    DEMAND(zmq_recv(dealer, word, sizeof word, 0) == 0, "answer %u: no empty frame", n);
    DEMAND(zmq_recv(dealer, word, sizeof word, 0) == 2 && !memcmp(word, "ok", 2), "answer %u: not ok", n);
    zmq_msg_t m;
    zmq_msg_init(&m);
    DEMAND(zmq_msg_recv(&m, dealer, 0) >= 0, "answer %u: %s", n, zmq_strerror(zmq_errno()));
    size_t size = zmq_msg_size(&m);
    int same = size == size_of(n) && !memcmp(zmq_msg_data(&m), body(n), size) && !zmq_msg_more(&m);
    zmq_msg_close(&m);
    DEMAND(same, "answer %u: other bytes, %zu of %zu", n, size, size_of(n));
    return 0;
}

static int pipelined(void) {
    void *dealer = connected(ZMQ_DEALER);
    for (uint32_t n = 0; n < MESSAGES + IN_FLIGHT; n++) {
        if (n < MESSAGES) DEMAND(!send_request(dealer, n), "request %u: %s", n, zmq_strerror(zmq_errno()));
        if (n >= IN_FLIGHT && check_answer(dealer, n - IN_FLIGHT)) return 1;
    }
    return zmq_close(dealer);
}

static int request_and_reply(void) {
    void *req = connected(ZMQ_REQ);
    for (uint32_t n = 0; n < 600; n += 50) {
        zmq_send(req, "echo", 4, ZMQ_SNDMORE);
        DEMAND(zmq_send(req, body(n), size_of(n), 0) >= 0, "%zu bytes: not sent", size_of(n));
        char word[8];
        DEMAND(zmq_recv(req, word, sizeof word, 0) == 2, "%zu bytes: no answer", size_of(n));
        static unsigned char back[LARGEST + 1];
        int size = zmq_recv(req, back, sizeof back, 0);
        DEMAND(size == (int)size_of(n) && !memcmp(back, body(n), size_of(n)), "%zu bytes: others", size_of(n));
    }
    return zmq_close(req);
}

static int one_way_and_published(void) {
    void *push = connected(ZMQ_PUSH), *sub = connected(ZMQ_SUB);
    int none = 0, soon = 50, patience = PATIENCE_MS;
    zmq_setsockopt(sub, ZMQ_RCVHWM, &none, sizeof none);
    zmq_setsockopt(sub, ZMQ_SUBSCRIBE, "c/", 2);
    char topic[64];
    /* Nothing is kept for a subscriber that is not there yet. */
    zmq_setsockopt(sub, ZMQ_RCVTIMEO, &soon, sizeof soon);
    int heard = -1;
    for (int tries = 0; heard < 0 && tries < PATIENCE_MS / 50; tries++) {
        zmq_send(push, "say/c/probe", 11, ZMQ_SNDMORE);
        zmq_send(push, "", 0, 0);
        heard = zmq_recv(sub, topic, sizeof topic, 0);
    }
    DEMAND(heard == 7, "no probe was heard");
    zmq_setsockopt(sub, ZMQ_RCVTIMEO, &patience, sizeof patience);
    zmq_recv(sub, topic, sizeof topic, 0);
    for (uint32_t n = 0; n < MESSAGES; n++) {
        zmq_send(push, "say/d", 5, ZMQ_SNDMORE); /* nobody wants that */
        zmq_send(push, "", 0, 0);
        zmq_send(push, "say/c/x", 7, ZMQ_SNDMORE);
        DEMAND(zmq_send(push, body(n), size_of(n), 0) >= 0, "message %u: not sent", n);
        if (n % 50) continue;
        /* In step, so that nobody is ahead of a mark. */
        for (uint32_t m = n < 50 ? 0 : n - 49; m <= n; m++) {
            static unsigned char got[LARGEST + 1];
            int size;
            do {
                DEMAND((size = zmq_recv(sub, topic, sizeof topic, 0)) > 0, "publication %u: none", m);
                int probe = size == 7;
                size = zmq_recv(sub, got, sizeof got, 0);
                if (!probe) break;
            } while (1);
            DEMAND(size == (int)size_of(m) && !memcmp(got, body(m), size_of(m)), "publication %u: other bytes", m);
        }
    }
    return zmq_close(push) | zmq_close(sub);
}

static int properties(void) {
    void *dealer = connected(ZMQ_DEALER);
    zmq_send(dealer, "1", 1, ZMQ_SNDMORE);
    zmq_send(dealer, "", 0, ZMQ_SNDMORE);
    zmq_send(dealer, "who", 3, ZMQ_SNDMORE);
    zmq_send(dealer, "", 0, 0);
    zmq_msg_t m;
    for (int frame = 0; frame < 4; frame++) {
        zmq_msg_init(&m);
        DEMAND(zmq_msg_recv(&m, dealer, 0) >= 0, "no answer: %s", zmq_strerror(zmq_errno()));
        const char *service = zmq_msg_gets(&m, "X-Service");
        DEMAND(service && !strcmp(service, "one-port"), "frame %d: X-Service is %s", frame, service ? service : "none");
        if (frame == 3) DEMAND(!strncmp(zmq_msg_data(&m), "c-client", 8), "our identity is not known there");
        zmq_msg_close(&m);
    }
    return zmq_close(dealer);
}

static int row(const char *kinds, const char *direction, const char *sizes, int (*run)(void)) {
    int major, minor, patch;
    zmq_version(&major, &minor, &patch);
    why[0] = 0;
    int failed = run();
    printf("libzmq %d.%d.%d, C API\t%s\t%s\t%s\t%s\t%s%s\n", major, minor, patch, kinds, user ? "PLAIN" : "NULL",
           direction, sizes, failed ? "FAILED: " : "ok", why);
    fflush(stdout);
    return failed;
}

int main(int argc, char **argv) {
    if (argc != 2 && argc != 4) return 2;
    endpoint = argv[1];
    if (argc == 4) user = argv[2], password = argv[3];
    context = zmq_ctx_new();
    fill_pool();
    int failed = row("DEALER", "both ways", "10000 of 0 B to 1 MiB, pipelined", pipelined);
    failed |= row("REQ", "both ways", "0 B to 1 MiB", request_and_reply);
    failed |= row("PUSH, heard by SUB", "both ways", "10000 of 0 B to 1 MiB", one_way_and_published);
    failed |= row("DEALER", "afflux -> client", "X- properties, identity", properties);
    /* The context is left to the end of the process: a failed check has left sockets open. */
    return failed ? 1 : 0;
}
