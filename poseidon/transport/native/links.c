/* Connections: parcels on their way out, cut into frames; bytes that come in, straight to where they belong.

   Out: the most urgent parcel first. A short frame goes at once; long ones take turns, MOST_ACTIVE links at a time, one
   frame a turn, which ends when the kernel has handed nearly all of it to the wire. A frame that has begun is finished.
   In: headers and what comes with them are read onto the stage; the rest of a long payload straight into its memory, and
   what follows it onto the stage, by one call. While a payload is under way the kernel announces only what is worth
   waking up for.

   `is_sending` and `is_receiving` make one thread at a time use a direction: the lock is given up in system calls. */

#define _GNU_SOURCE
#include "mesh.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

static const uint32_t EVENTS = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;

double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void discard(Mesh *mesh, void *owner) {
    if (owner == NULL) return;
    if (mesh->num_garbage == mesh->room_garbage) {
        mesh->room_garbage = 2 * mesh->room_garbage + 16;
        mesh->garbage = realloc(mesh->garbage, mesh->room_garbage * sizeof(void *));
    }
    mesh->garbage[mesh->num_garbage++] = owner;
}

void release_operation(Mesh *mesh, Operation *operation) {
    if (--operation->users > 0) return;
    discard(mesh, operation->owner);
    free(operation);
}

/* Its memory is nobody's business any more; the caller may still ask how it ended. */
void end_operation(Mesh *mesh, Operation *operation, int state) {
    operation->state = state;
    discard(mesh, operation->owner);
    operation->owner = NULL;
    release_operation(mesh, operation);
    notify(mesh);
}

/* Asks the kernel to look at a link again, and to announce what it finds. */
static void rearm(Mesh *mesh, Link *link) {
    struct epoll_event event = {.events = EVENTS, .data.ptr = link};
    if (link->is_open) epoll_ctl(mesh->epoll, EPOLL_CTL_MOD, link->fd, &event);
}

/* -- out -------------------------------------------------------------------------------------------------------------- */
static bool goes_before(const Parcel *a, const Parcel *b) {
    if (a->round != b->round) return a->round < b->round;
    if (a->queue != b->queue) return a->queue < b->queue;
    return a->number < b->number;
}

static size_t next_frame_bytes(const Parcel *parcel) {
    size_t left = parcel->length - parcel->sent;
    return left < MAX_FRAME_BYTES ? left : MAX_FRAME_BYTES;
}

static void begin_frame(Link *link) {
    Parcel *parcel = link->begun = link->first;
    size_t length = next_frame_bytes(parcel);
    bool is_last = parcel->sent + length == parcel->length;
    link->head = parcel->header;
    link->head.offset += parcel->sent;
    link->head.length = (uint32_t)length;
    if (!is_last && parcel->header.kind != MESSAGE) link->head.value = 0; /* the notification goes with the last */
    link->frame_bytes = HEADER_BYTES + length;
    link->frame_sent = 0;
}

static void end_parcel(Mesh *mesh, Parcel *parcel, int state) {
    if (parcel->owner != NULL && --mesh->outstanding[parcel->queue] == 0) notify(mesh);
    if (parcel->operation != NULL) end_operation(mesh, parcel->operation, state);
    discard(mesh, parcel->owner);
    free(parcel);
}

static void remove_parcel(Link *link, Parcel *parcel) {
    Parcel **place = &link->first;
    while (*place != parcel) place = &(*place)->next;
    *place = parcel->next;
    link->num_waiting--;
}

static void end_frame(Mesh *mesh, Link *link) {
    Parcel *parcel = link->begun;
    link->begun = NULL;
    link->said_s = now_s();
    parcel->sent += link->frame_bytes - HEADER_BYTES;
    if (parcel->sent < parcel->length) return;
    remove_parcel(link, parcel);
    end_parcel(mesh, parcel, DONE);
}

/* Hands the frame that has begun to the kernel. 0 if it took all, else errno. */
static int push(Mesh *mesh, Link *link) {
    Parcel *parcel = link->begun;
    while (link->frame_sent < link->frame_bytes) {
        struct iovec parts[2];
        struct msghdr message = {.msg_iov = parts};
        size_t payload_sent = 0;
        if (link->frame_sent < HEADER_BYTES) {
            parts[message.msg_iovlen++] =
                (struct iovec){(char *)&link->head + link->frame_sent, HEADER_BYTES - link->frame_sent};
        } else {
            payload_sent = link->frame_sent - HEADER_BYTES;
        }
        if (link->frame_bytes > HEADER_BYTES) {
            parts[message.msg_iovlen++] = (struct iovec){(char *)parcel->payload + parcel->sent + payload_sent,
                                                         link->frame_bytes - HEADER_BYTES - payload_sent};
        }
        link->has_room_again = false;
        pthread_mutex_unlock(&mesh->lock);
        ssize_t num_bytes = sendmsg(link->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        int error = errno;
        pthread_mutex_lock(&mesh->lock);
        if (num_bytes > 0) link->frame_sent += (size_t)num_bytes;
        bool is_full = error == EAGAIN || error == EWOULDBLOCK;
        if (num_bytes < 0 && error != EINTR && !(is_full && link->has_room_again)) return error;
        if (!link->is_open && link->frame_sent < link->frame_bytes) return EPIPE; /* ended meanwhile */
    }
    return 0;
}

/* Whether the frame that comes next may begin. */
static bool may_begin(Link *link) {
    if (link->first == NULL) return false;
    if (next_frame_bytes(link->first) <= AT_ONCE_BYTES) return true;
    if (link->turn != ACTIVE || link->has_used_turn) return false;
    return link->has_used_turn = true;
}

static void end_turn(Mesh *mesh, Link *link) {
    if (link->turn == ACTIVE) mesh->num_active--;
    link->turn = IDLE;
}

/* What cannot be sent any more says that the peer is gone, not how: what it said last may not be read yet, and if that
 * was goodbye, nothing is lost. Whoever reads comes to the end of it, and ends the link. */
static bool is_gone(int error) { return error == EPIPE || error == ECONNRESET; }

/* Sends what may go now: the frame that has begun, short ones, a long one if it is the link's turn. */
static void push_link(Mesh *mesh, Link *link) {
    if (link->is_sending || !link->is_open) return; /* who is at it looks again for what has come meanwhile */
    link->is_sending = true;
    int error = 0;
    while (error == 0 && link->is_open && (link->begun != NULL || may_begin(link))) {
        if (link->begun == NULL) begin_frame(link);
        error = push(mesh, link);
        if (error == 0) end_frame(mesh, link);
    }
    link->is_sending = false;
    if (!link->is_open) {
        drop_parcels(mesh, link);
    } else if (is_gone(error)) {
        rearm(mesh, link); /* to be read to its end */
    } else if (error != 0 && error != EAGAIN && error != EWOULDBLOCK) {
        end_link(mesh, link, error);
    } else if (link->begun == NULL) {
        if (link->turn == ACTIVE && link->has_used_turn)
            rearm(mesh, link); /* it tells when there is room: the end of the turn */
        else if (link->first == NULL)
            end_turn(mesh, link);
        else if (link->turn == IDLE)
            link->turn = WANTING;
    }
}

static bool is_more_urgent(const Link *a, const Link *b) {
    if (a->first->round != b->first->round) return a->first->round < b->first->round;
    if (a->first->queue != b->first->queue) return a->first->queue < b->first->queue;
    if (a->last_turn != b->last_turn) return a->last_turn < b->last_turn;
    return a->first->number < b->first->number;
}

static Link *next_in_turn(Mesh *mesh) {
    Link *best = NULL;
    for (int rank = 0; rank < mesh->size; rank++) {
        Link *link = mesh->links[rank];
        if (link == NULL || link->turn != WANTING || link->first == NULL) continue;
        if (best == NULL || is_more_urgent(link, best)) best = link;
    }
    return best;
}

static void grant_turns(Mesh *mesh) {
    Link *link;
    while (mesh->num_active < MOST_ACTIVE && (link = next_in_turn(mesh)) != NULL) {
        link->turn = ACTIVE;
        link->has_used_turn = false;
        link->last_turn = ++mesh->num_turns;
        mesh->num_active++;
        push_link(mesh, link);
    }
}

/* The kernel has room for a link: that ends its turn, if it had one. */
static void use_room(Mesh *mesh, Link *link) {
    link->has_room_again = true; /* for one who is just being told that there is none: nobody tells twice */
    if (link->turn == ACTIVE && link->has_used_turn && link->begun == NULL && !link->is_sending) end_turn(mesh, link);
    push_link(mesh, link);
    grant_turns(mesh);
}

void give(Mesh *mesh, Link *link, Parcel *parcel) {
    bool is_beat = parcel->header.kind == BEAT; /* it waits for nobody; a frame that has begun is one itself */
    parcel->number = is_beat ? 0 : ++mesh->num_parcels;
    if (parcel->owner != NULL) mesh->outstanding[parcel->queue]++;
    if (!link->is_open || link->has_left || (is_beat && link->begun != NULL)) {
        link->said_s = now_s();
        end_parcel(mesh, parcel, FAILED);
        return;
    }
    Parcel **place = &link->first;
    while (*place != NULL && goes_before(*place, parcel)) place = &(*place)->next;
    parcel->next = *place;
    *place = parcel;
    link->num_waiting++;
    push_link(mesh, link);
    grant_turns(mesh);
    if (link->first != NULL) call_service(mesh);
}

/* Nothing is sent any more. What a thread is just sending goes when it comes back (push_link). */
void drop_parcels(Mesh *mesh, Link *link) {
    if (link->is_sending) return;
    link->begun = NULL;
    while (link->first != NULL) {
        Parcel *parcel = link->first;
        link->first = parcel->next;
        link->num_waiting--;
        end_parcel(mesh, parcel, FAILED);
    }
    end_turn(mesh, link);
    grant_turns(mesh);
}

/* -- in --------------------------------------------------------------------------------------------------------------- */
/* Goes through what is on the stage, frame by frame. False: a frame that must not come. */
static bool look_through(Mesh *mesh, Link *link) {
    size_t at = 0, end = link->num_staged;
    while (end - at >= HEADER_BYTES) {
        memcpy(&link->frame, link->stage + at, HEADER_BYTES);
        at += HEADER_BYTES;
        size_t length = link->frame.length;
        char *into = NULL;
        if (length > 0) {
            into = room_for(mesh, link, &link->frame);
            if (into == NULL) return false;
        }
        size_t here = length < end - at ? length : end - at;
        memcpy(into, link->stage + at, here);
        at += here;
        if (here < length) {
            link->into = into + here;
            link->rest = length - here;
            mesh->num_rests++;
            break;
        }
        if (!arrived(mesh, link, &link->frame)) return false;
    }
    memmove(link->stage, link->stage + at, end - at);
    link->num_staged = end - at;
    return true;
}

static bool take_in(Mesh *mesh, Link *link, size_t num_bytes) {
    if (link->rest > 0) {
        size_t here = num_bytes < link->rest ? num_bytes : link->rest;
        link->into += here;
        link->rest -= here;
        if (link->rest > 0) return true;
        mesh->num_rests--;
        link->num_staged = num_bytes - here;
        if (!arrived(mesh, link, &link->frame)) return false;
    } else {
        link->num_staged += num_bytes;
    }
    return look_through(mesh, link);
}

/* Tells the kernel from how many bytes on it shall announce what comes. */
static void ask_for_more(Link *link) {
    int worth = link->rest == 0 ? 1 : link->rest < MAX_FRAME_BYTES ? (int)link->rest : MAX_FRAME_BYTES;
    if (worth == link->announced || !link->is_open) return;
    link->announced = worth;
    setsockopt(link->fd, SOL_SOCKET, SO_RCVLOWAT, &worth, sizeof worth);
}

/* Reads once; true if there may be more. */
static bool read_some(Mesh *mesh, Link *link, size_t *left, bool to_the_end) {
    struct iovec parts[2];
    struct msghdr message = {.msg_iov = parts};
    size_t room = 0;
    if (link->rest > 0) {
        parts[message.msg_iovlen++] = (struct iovec){link->into, link->rest};
        parts[message.msg_iovlen++] = (struct iovec){link->stage, STAGE_BYTES};
        room = link->rest + STAGE_BYTES;
    } else {
        room = STAGE_BYTES - link->num_staged;
        parts[message.msg_iovlen++] = (struct iovec){link->stage + link->num_staged, room};
    }
    pthread_mutex_unlock(&mesh->lock);
    ssize_t num_bytes = recvmsg(link->fd, &message, MSG_DONTWAIT);
    int error = errno;
    pthread_mutex_lock(&mesh->lock);
    if (!link->is_open) return false;
    if (num_bytes < 0 && (error == EAGAIN || error == EWOULDBLOCK)) return false;
    if (num_bytes < 0 && error == EINTR) return true;
    if (num_bytes <= 0) {
        end_link(mesh, link, num_bytes == 0 ? 0 : error);
        return false;
    }
    link->heard_s = now_s();
    *left -= (size_t)num_bytes < *left ? (size_t)num_bytes : *left;
    if (!take_in(mesh, link, (size_t)num_bytes)) {
        add_news(mesh, link->rank, ODD_FRAME, 0, &link->frame, NULL, 0);
        end_link(mesh, link, EPROTO);
        return false;
    }
    return (size_t)num_bytes == room || to_the_end;
}

/* Reads what has come, within a turn. What comes later is announced by an event of its own. */
void receive(Mesh *mesh, Link *link, bool to_the_end) {
    if (link->is_receiving || !link->is_open) {
        link->comes_again = true;
        return;
    }
    link->is_receiving = true;
    size_t left = TURN_BYTES;
    do {
        link->comes_again = false;
        while (left > 0 && read_some(mesh, link, &left, to_the_end)) continue;
    } while (link->comes_again && left > 0 && link->is_open);
    ask_for_more(link);
    link->is_receiving = false;
    if (left == 0) rearm(mesh, link);
    if (!link->is_open) drop_messages(mesh, link);
}

void serve_link(Mesh *mesh, Link *link, uint32_t events) {
    if (events & ~(uint32_t)EPOLLOUT) receive(mesh, link, (events & ~(uint32_t)(EPOLLIN | EPOLLOUT)) != 0);
    if (events & EPOLLOUT && link->is_open) use_room(mesh, link);
}

/* A connection is over: Python is told, what waits for it fails. */
void end_link(Mesh *mesh, Link *link, int error) {
    if (!link->is_open) return;
    link->is_open = false;
    epoll_ctl(mesh->epoll, EPOLL_CTL_DEL, link->fd, NULL);
    add_news(mesh, link->rank, END_OF_LINK, error, NULL, NULL, 0);
    if (link->rest > 0) mesh->num_rests--;
    link->rest = 0;
    drop_parcels(mesh, link);
    if (!link->is_receiving) drop_messages(mesh, link);
}
