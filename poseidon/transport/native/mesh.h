/* Mesh: the connections of one worker to the others of its job, served without Python and without its lock.

   Two ways to use them, on the frames of ../onesided/frames.py:

       puts        bytes for another worker's segment, and a notification that appears there after them
       messages    bytes that a receive with the same tag waits for, or will

   One lock guards everything here. It is never held in a system call, and nobody who holds it asks for Python's.
   Whoever waits serves the connections meanwhile (waits.c), so that no other thread has to wake it; where nobody waits, a
   thread of Python's that called `serve` does. */

#ifndef POSEIDON_MESH_H
#define POSEIDON_MESH_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "frames are little endian, and so must the host be"
#endif

enum Kind { PUT = 1, READ, DATA, SEGMENT, BEAT, LOST, BYE, MESSAGE };

/* frames.py: <BxxxIQIIQ. A MESSAGE has its tag in `value`, and its whole length in `segment` (low) and `id` (high). */
typedef struct __attribute__((packed)) {
    uint8_t kind, unused[3];
    uint32_t segment;
    uint64_t offset;
    uint32_t length, id;
    uint64_t value;
} Header;

enum {
    HEADER_BYTES = 32,
    MAX_FRAME_BYTES = 1 << 20, /* long puts are cut, so that urgent ones pass between */
    MAX_TEXT_BYTES = 1 << 16,
    AT_ONCE_BYTES = 64 << 10, /* a frame so short takes no turn */
    STAGE_BYTES = 64 << 10,
    TURN_BYTES = 4 << 20, /* a link reads so much before others are read */
    MOST_ACTIVE = 2,      /* links that send long frames at a time: see ../onesided/turns.py */
    NUM_QUEUES = 8,
};

typedef struct Mesh Mesh;
typedef struct Link Link;

/* What a caller waits for: the end of a message, sent or received. */
typedef struct Operation {
    enum { PENDING, DONE, FAILED } state;
    int users; /* the caller, and whatever completes it */
    uint64_t tag;
    char *memory;
    size_t length;
    void *owner; /* keeps the memory */
    struct Operation *next;
} Operation;

/* Something on its way out, in one frame or several. Sorted by round, queue and number. */
typedef struct Parcel {
    struct Parcel *next;
    uint64_t round, number;
    uint32_t queue;
    Header header; /* of the first frame; `length` is each frame's own */
    const char *payload;
    size_t length, sent;
    void *owner;          /* keeps the payload; NULL: it lies behind this struct */
    Operation *operation; /* ends when the kernel has taken all */
} Parcel;

/* A message on its way in, or here already while nobody has asked for it. */
typedef struct Message {
    struct Message *next;
    uint64_t tag;
    size_t length, arrived;
    char *staged; /* NULL if it goes straight to where it is wanted */
    Operation *operation;
} Message;

enum Turn { IDLE, WANTING, ACTIVE };

struct Link {
    int rank, fd;
    bool is_open;  /* false once it has ended, whatever way */
    bool has_left; /* the peer reads no more */
    double heard_s, said_s;
    /* out */
    Parcel *first, *begun;
    int num_waiting;
    Header head;
    size_t frame_bytes, frame_sent; /* of the frame under way, with its header */
    bool is_sending;                /* a thread is at it */
    bool has_room_again;
    enum Turn turn;
    bool has_used_turn;
    uint64_t last_turn;
    /* in */
    bool is_receiving, comes_again;
    Header frame;
    char *into; /* where the rest of the payload under way goes */
    size_t rest;
    char *stage;
    size_t num_staged;
    char *text;
    int announced; /* from so many bytes on the kernel tells that something has come */
    Operation *posted;
    Message *messages;
};

typedef struct {
    uint32_t number;
    char *memory;
    size_t length;
} Region;

typedef struct {
    uint32_t number;
    char *memory;
    size_t length;
    void *owner;
} Reading;

typedef struct {
    uint32_t id, value;
} Notice;

/* What Python has to deal with: a frame that is no put and no message, or the end of a link. */
typedef struct News {
    struct News *next;
    int rank;
    enum { FRAME, ODD_FRAME, END_OF_LINK } what;
    int error; /* errno at the end of a link, 0 if the peer closed it */
    Header header;
    size_t length;
    char text[];
} News;

typedef struct Waiter {
    struct Waiter *next;
    bool (*is_over)(Mesh *, struct Waiter *);
    pthread_cond_t wake; /* made when it first sleeps */
    bool has_cond, sleeps;
    /* what is_over looks at */
    Operation *operation;
    uint64_t first_id, last_id; /* the last is outside */
    const uint32_t *ids;
    size_t num_ids;
    int queue;
    bool also_if_left;
} Waiter;

struct Mesh {
    pthread_mutex_t lock;
    int epoll, bell;
    int size;
    Link **links; /* by rank; NULL for oneself */
    /* out */
    uint64_t num_parcels, num_turns;
    int num_active;
    int outstanding[NUM_QUEUES];
    /* in */
    Region *regions;
    size_t num_regions;
    Reading *readings;
    size_t num_readings;
    Notice *notices;
    size_t num_notices, room_notices;
    News *news, **last_news;
    int num_left, left_told;
    /* waits */
    Waiter *waiters;
    Waiter *poller; /* who is serving the connections */
    bool is_in_kernel;
    uint64_t num_polls;
    Waiter *service; /* Python's thread inside `serve` */
    bool service_rests, is_service_urgent;
    int num_rests; /* payloads under way */
    bool has_failed, is_closing;
    /* owners that nobody needs any more, for the next one who has Python's lock */
    void **garbage;
    size_t num_garbage, room_garbage;
};

/* links.c */
double now_s(void);
void give(Mesh *mesh, Link *link, Parcel *parcel);
void receive(Mesh *mesh, Link *link, bool to_the_end);
void serve_link(Mesh *mesh, Link *link, uint32_t events);
void end_link(Mesh *mesh, Link *link, int error);
void drop_parcels(Mesh *mesh, Link *link);
void discard(Mesh *mesh, void *owner);
void end_operation(Mesh *mesh, Operation *operation, int state);
void release_operation(Mesh *mesh, Operation *operation);

/* inbox.c */
char *room_for(Mesh *mesh, Link *link, const Header *frame);
bool arrived(Mesh *mesh, Link *link, const Header *frame);
void add_news(Mesh *mesh, int rank, int what, int error, const Header *header, const char *text, size_t length);
void post_notice(Mesh *mesh, uint32_t id, uint32_t value);
void post_receive(Mesh *mesh, Link *link, Operation *operation);
void drop_messages(Mesh *mesh, Link *link);

/* waits.c */
enum { OVER, TIMED_OUT, INTERRUPTED, BROKEN };
void notify(Mesh *mesh);
void ring(Mesh *mesh);
void call_service(Mesh *mesh);
int wait_for(Mesh *mesh, Waiter *waiter, double deadline_s, bool is_failure_end);
void serve(Mesh *mesh, double deadline_s);

#endif
