/* Waits: whoever waits serves the connections, one thread at a time (the poller); others sleep until what they wait for
   is there, or until it is their turn to serve.

   Python's thread inside `serve` is the poller of last resort. While others come and wait again and again it stands by,
   and looks every TICK_S whether they still do: to wake it each time would cost more than the work. One who stops waiting
   while bytes are under way wakes it at once. Nobody spins. */

#define _GNU_SOURCE
#include "mesh.h"

#include <errno.h>
#include <math.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>

enum { MOST_EVENTS = 64 };
static const double TICK_S = 0.004;
static const double SLICE_S = 0.2; /* Python looks for signals so often */

static void init_cond(pthread_cond_t *cond) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
}

void ring(Mesh *mesh) { eventfd_write(mesh->bell, 1); }

/* Something has changed: wakes whoever waits for just that. */
void notify(Mesh *mesh) {
    for (Waiter *waiter = mesh->waiters; waiter != NULL; waiter = waiter->next) {
        if (!waiter->sleeps && !(waiter == mesh->poller && mesh->is_in_kernel)) continue;
        if (!mesh->has_failed && !waiter->is_over(mesh, waiter)) continue;
        if (waiter->sleeps)
            pthread_cond_signal(&waiter->wake);
        else
            ring(mesh);
    }
}

static void sleep_until(Mesh *mesh, Waiter *waiter, double deadline_s) {
    struct timespec moment = {.tv_sec = (time_t)deadline_s};
    moment.tv_nsec = (long)((deadline_s - (double)moment.tv_sec) * 1e9);
    if (!waiter->has_cond) init_cond(&waiter->wake);
    waiter->has_cond = waiter->sleeps = true;
    pthread_cond_timedwait(&waiter->wake, &mesh->lock, &moment);
    waiter->sleeps = false;
}

/* Serves the connections for one round of events; false if a signal came. */
static bool poll_once(Mesh *mesh, Waiter *waiter, double deadline_s) {
    struct epoll_event events[MOST_EVENTS];
    double left_s = deadline_s - now_s();
    int milliseconds = left_s <= 0 ? 0 : (int)ceil(left_s * 1e3);
    mesh->poller = waiter;
    mesh->is_in_kernel = true;
    pthread_mutex_unlock(&mesh->lock);
    int number = epoll_wait(mesh->epoll, events, MOST_EVENTS, milliseconds);
    int error = errno;
    pthread_mutex_lock(&mesh->lock);
    mesh->is_in_kernel = false;
    for (int i = 0; i < number; i++)
        if (events[i].data.ptr != NULL) serve_link(mesh, events[i].data.ptr, events[i].events);
    mesh->poller = NULL;
    return number >= 0 || error != EINTR;
}

static void enter(Mesh *mesh, Waiter *waiter) {
    waiter->has_cond = false;
    waiter->next = mesh->waiters;
    mesh->waiters = waiter;
}

/* Lets one of those who sleep serve; false if nobody does. */
static bool wake_another(Mesh *mesh) {
    for (Waiter *other = mesh->waiters; other != NULL; other = other->next) {
        if (other == mesh->service || !other->sleeps) continue;
        pthread_cond_signal(&other->wake);
        return true;
    }
    return false;
}

static bool has_bytes_under_way(const Mesh *mesh) {
    if (mesh->num_rests > 0) return true;
    for (int rank = 0; rank < mesh->size; rank++)
        if (mesh->links[rank] != NULL && mesh->links[rank]->first != NULL) return true;
    return false;
}

/* There is something to be served, and nobody who waits: no time to see whether somebody comes. */
void call_service(Mesh *mesh) {
    if (mesh->poller != NULL || mesh->service == NULL || !mesh->service->sleeps) return;
    mesh->is_service_urgent = true;
    pthread_cond_signal(&mesh->service->wake);
}

/* Somebody stops waiting, and with it perhaps serving: others go on with that. */
static void leave(Mesh *mesh, Waiter *waiter) {
    Waiter **place = &mesh->waiters;
    while (*place != waiter) place = &(*place)->next;
    *place = waiter->next;
    if (waiter->has_cond) pthread_cond_destroy(&waiter->wake);
    if (mesh->poller != NULL || wake_another(mesh)) return;
    if (has_bytes_under_way(mesh))
        call_service(mesh);
    else if (mesh->service_rests)
        pthread_cond_signal(&mesh->service->wake);
}

int wait_for(Mesh *mesh, Waiter *waiter, double deadline_s, bool is_failure_end) {
    if (is_failure_end && mesh->has_failed) return BROKEN;
    if (waiter->is_over(mesh, waiter)) return OVER;
    double slice_s = now_s() + SLICE_S, until_s = deadline_s < slice_s ? deadline_s : slice_s;
    int result = -1;
    enter(mesh, waiter);
    while (result < 0) {
        bool is_undisturbed = true;
        if (mesh->poller == NULL) {
            mesh->num_polls++;
            is_undisturbed = poll_once(mesh, waiter, until_s);
        } else {
            sleep_until(mesh, waiter, until_s);
        }
        if (is_failure_end && mesh->has_failed)
            result = BROKEN;
        else if (waiter->is_over(mesh, waiter))
            result = OVER;
        else if (now_s() >= deadline_s)
            result = TIMED_OUT;
        else if (!is_undisturbed || now_s() >= until_s)
            result = INTERRUPTED;
    }
    leave(mesh, waiter);
    return result;
}

static bool has_news(Mesh *mesh, Waiter *waiter) {
    (void)waiter;
    return mesh->news != NULL || mesh->is_closing;
}

static bool has_others(const Mesh *mesh) {
    for (Waiter *waiter = mesh->waiters; waiter != NULL; waiter = waiter->next)
        if (waiter != mesh->service) return true;
    return false;
}

/* Serves the connections until there is news, or until the deadline. */
void serve(Mesh *mesh, double deadline_s) {
    Waiter waiter = {.is_over = has_news};
    uint64_t num_polls = mesh->num_polls;
    enter(mesh, &waiter);
    mesh->service = &waiter;
    while (!has_news(mesh, &waiter) && now_s() < deadline_s) {
        bool is_needed = num_polls == mesh->num_polls || mesh->is_service_urgent;
        if (mesh->poller == NULL && !has_others(mesh) && is_needed) {
            num_polls = mesh->num_polls;
            mesh->is_service_urgent = false;
            poll_once(mesh, &waiter, deadline_s);
            wake_another(mesh); /* it came meanwhile: from now on it serves itself */
            continue;
        }
        num_polls = mesh->num_polls;
        double tick_s = now_s() + TICK_S;
        sleep_until(mesh, &waiter, tick_s < deadline_s ? tick_s : deadline_s);
        if (mesh->poller != NULL && num_polls == mesh->num_polls && !has_news(mesh, &waiter)) {
            mesh->service_rests = true; /* somebody stays in one wait */
            sleep_until(mesh, &waiter, deadline_s);
            mesh->service_rests = false;
        }
    }
    mesh->service = NULL;
    leave(mesh, &waiter);
}
