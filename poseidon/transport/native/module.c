/* The Python face of a mesh: types Mesh and Operation. What can be said in Python is said there (../onesided/native.py,
   ../messages.py); here is only what has to be quick, or to go on without Python's lock. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "mesh.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { KEEPS_LOCK_BYTES = 16 << 10 }; /* shorter ones are sent without giving up Python's lock: that takes longer */

typedef struct {
    PyObject_HEAD
    Mesh *mesh;
} MeshObject;

typedef struct {
    PyObject_HEAD
    MeshObject *owner;
    Operation *operation;
} OperationObject;

static PyTypeObject MeshType, OperationType;

/* -- helpers ---------------------------------------------------------------------------------------------------------- */
/* Lets go of what nobody needs any more. Called with Python's lock, without the mesh's. */
static void collect(Mesh *mesh) {
    if (mesh->num_garbage == 0) return;
    pthread_mutex_lock(&mesh->lock);
    void **garbage = mesh->garbage;
    size_t number = mesh->num_garbage;
    mesh->garbage = NULL;
    mesh->num_garbage = mesh->room_garbage = 0;
    pthread_mutex_unlock(&mesh->lock);
    for (size_t i = 0; i < number; i++) Py_DECREF((PyObject *)garbage[i]);
    free(garbage);
}

static Link *link_to(Mesh *mesh, int rank) {
    if (rank < 0 || rank >= mesh->size || mesh->links[rank] == NULL) {
        PyErr_Format(PyExc_ValueError, "there is no link to rank %d", rank);
        return NULL;
    }
    return mesh->links[rank];
}

/* Waits, and lets Python look for signals now and then. Returns OVER, TIMED_OUT or BROKEN; -1 with an exception set. The
   mesh is locked afterwards, so that what was waited for can be taken. */
static int wait_in_python(Mesh *mesh, Waiter *waiter, double timeout_s, bool is_failure_end) {
    double deadline_s = now_s() + timeout_s;
    pthread_mutex_lock(&mesh->lock);
    if (is_failure_end && mesh->has_failed) return BROKEN;
    if (waiter->is_over(mesh, waiter)) return OVER;
    for (;;) {
        int result;
        pthread_mutex_unlock(&mesh->lock);
        Py_BEGIN_ALLOW_THREADS;
        pthread_mutex_lock(&mesh->lock);
        result = wait_for(mesh, waiter, deadline_s, is_failure_end);
        pthread_mutex_unlock(&mesh->lock);
        Py_END_ALLOW_THREADS;
        if (result == INTERRUPTED && PyErr_CheckSignals() < 0) return -1;
        pthread_mutex_lock(&mesh->lock);
        if (result == INTERRUPTED) continue;
        if (result == OVER && !waiter->is_over(mesh, waiter)) continue; /* somebody else has taken it */
        return result;
    }
}

static void give_away(Mesh *mesh, Link *link, Parcel *parcel, size_t length) {
    if (length <= KEEPS_LOCK_BYTES) {
        pthread_mutex_lock(&mesh->lock);
        give(mesh, link, parcel);
        pthread_mutex_unlock(&mesh->lock);
    } else {
        Py_BEGIN_ALLOW_THREADS;
        pthread_mutex_lock(&mesh->lock);
        give(mesh, link, parcel);
        pthread_mutex_unlock(&mesh->lock);
        Py_END_ALLOW_THREADS;
    }
    collect(mesh);
}

/* -- Operation -------------------------------------------------------------------------------------------------------- */
static bool operation_is_over(Mesh *mesh, Waiter *waiter) {
    (void)mesh;
    return waiter->operation->state != PENDING;
}

/* wait(timeout_s) -> True when it is over, False if it takes longer; raises ConnectionError if it cannot end any more */
static PyObject *operation_wait(OperationObject *self, PyObject *argument) {
    double timeout_s = PyFloat_AsDouble(argument);
    if (timeout_s == -1.0 && PyErr_Occurred()) return NULL;
    Mesh *mesh = self->owner->mesh;
    Waiter waiter = {.is_over = operation_is_over, .operation = self->operation};
    int result = wait_in_python(mesh, &waiter, timeout_s, true);
    if (result < 0) return NULL;
    int state = self->operation->state;
    pthread_mutex_unlock(&mesh->lock);
    collect(mesh);
    if (state == DONE) Py_RETURN_TRUE;
    if (state == FAILED || result == BROKEN) {
        PyErr_SetString(PyExc_ConnectionError, "the connection ended");
        return NULL;
    }
    Py_RETURN_FALSE;
}

static PyObject *operation_done(OperationObject *self, PyObject *unused) {
    (void)unused;
    return PyBool_FromLong(self->operation->state != PENDING || self->owner->mesh->has_failed);
}

static void operation_dealloc(OperationObject *self) {
    Mesh *mesh = self->owner->mesh;
    pthread_mutex_lock(&mesh->lock);
    release_operation(mesh, self->operation);
    pthread_mutex_unlock(&mesh->lock);
    Py_DECREF(self->owner);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef operation_methods[] = {
    {"wait", (PyCFunction)operation_wait, METH_O, NULL},
    {"done", (PyCFunction)operation_done, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject OperationType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "poseidon.transport.native._mesh.Operation",
    .tp_basicsize = sizeof(OperationObject),
    .tp_dealloc = (destructor)operation_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_methods = operation_methods,
};

static OperationObject *new_operation(MeshObject *owner, uint64_t tag, char *memory, size_t length, PyObject *keeper) {
    OperationObject *made = PyObject_New(OperationObject, &OperationType);
    Operation *operation = made == NULL ? NULL : calloc(1, sizeof(Operation));
    if (operation == NULL) {
        Py_XDECREF(made);
        PyErr_NoMemory();
        return NULL;
    }
    *operation = (Operation){.users = 2, .tag = tag, .memory = memory, .length = length};
    operation->owner = Py_NewRef(keeper);
    made->operation = operation;
    made->owner = (MeshObject *)Py_NewRef((PyObject *)owner);
    return made;
}

/* -- Mesh: making and ending ------------------------------------------------------------------------------------------ */
static PyObject *mesh_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    int size;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "i", &size)) return NULL;
    MeshObject *self = (MeshObject *)type->tp_alloc(type, 0);
    Mesh *mesh = self == NULL ? NULL : calloc(1, sizeof(Mesh));
    if (mesh == NULL) return PyErr_NoMemory();
    self->mesh = mesh;
    mesh->size = size;
    mesh->links = calloc((size_t)size, sizeof(Link *));
    mesh->last_news = &mesh->news;
    pthread_mutex_init(&mesh->lock, NULL);
    mesh->epoll = epoll_create1(EPOLL_CLOEXEC);
    mesh->bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.ptr = NULL};
    if (mesh->epoll < 0 || mesh->bell < 0 || epoll_ctl(mesh->epoll, EPOLL_CTL_ADD, mesh->bell, &event) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

/* connect(rank, fd): a socket to a peer; the caller keeps it open until `close` has been called */
static PyObject *mesh_connect(MeshObject *self, PyObject *args) {
    Mesh *mesh = self->mesh;
    int rank, fd;
    if (!PyArg_ParseTuple(args, "ii", &rank, &fd)) return NULL;
    if (rank < 0 || rank >= mesh->size || mesh->links[rank] != NULL)
        return PyErr_Format(PyExc_ValueError, "no link can be made to rank %d", rank);
    Link *link = calloc(1, sizeof(Link));
    if (link == NULL) return PyErr_NoMemory();
    *link = (Link){.rank = rank, .fd = fd, .is_open = true, .announced = 1};
    link->stage = malloc(STAGE_BYTES);
    link->text = malloc(MAX_TEXT_BYTES);
    link->heard_s = link->said_s = now_s();
    pthread_mutex_lock(&mesh->lock);
    mesh->links[rank] = link;
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = link};
    int failed = epoll_ctl(mesh->epoll, EPOLL_CTL_ADD, fd, &event);
    pthread_mutex_unlock(&mesh->lock);
    if (failed) return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

/* expose(segment, address, num_bytes): others may put into it from now on */
static PyObject *mesh_expose(MeshObject *self, PyObject *args) {
    Mesh *mesh = self->mesh;
    unsigned int number;
    unsigned long long address, length;
    if (!PyArg_ParseTuple(args, "IKK", &number, &address, &length)) return NULL;
    pthread_mutex_lock(&mesh->lock);
    mesh->regions = realloc(mesh->regions, (mesh->num_regions + 1) * sizeof(Region));
    mesh->regions[mesh->num_regions++] = (Region){number, (char *)(uintptr_t)address, length};
    pthread_mutex_unlock(&mesh->lock);
    Py_RETURN_NONE;
}

/* fail(): every wait ends from now on */
static PyObject *mesh_fail(MeshObject *self, PyObject *unused) {
    (void)unused;
    pthread_mutex_lock(&self->mesh->lock);
    self->mesh->has_failed = true;
    notify(self->mesh);
    pthread_mutex_unlock(&self->mesh->lock);
    Py_RETURN_NONE;
}

/* close(): nothing comes or goes any more; `serve` returns. Sockets may be closed afterwards. */
static PyObject *mesh_close(MeshObject *self, PyObject *unused) {
    Mesh *mesh = self->mesh;
    (void)unused;
    pthread_mutex_lock(&mesh->lock);
    mesh->is_closing = mesh->has_failed = true;
    for (int rank = 0; rank < mesh->size; rank++)
        if (mesh->links[rank] != NULL) end_link(mesh, mesh->links[rank], 0);
    notify(mesh);
    bool is_busy = true;
    while (is_busy) { /* a thread may be in a system call, with files that are about to be closed */
        is_busy = mesh->is_in_kernel;
        if (is_busy) ring(mesh);
        for (int rank = 0; rank < mesh->size; rank++)
            is_busy |= mesh->links[rank] != NULL && (mesh->links[rank]->is_sending || mesh->links[rank]->is_receiving);
        if (is_busy) {
            pthread_mutex_unlock(&mesh->lock);
            Py_BEGIN_ALLOW_THREADS;
            usleep(200);
            Py_END_ALLOW_THREADS;
            pthread_mutex_lock(&mesh->lock);
        }
    }
    if (mesh->epoll >= 0) close(mesh->epoll);
    if (mesh->bell >= 0) close(mesh->bell);
    mesh->epoll = mesh->bell = -1;
    pthread_mutex_unlock(&mesh->lock);
    collect(mesh);
    Py_RETURN_NONE;
}

static void mesh_dealloc(MeshObject *self) {
    Mesh *mesh = self->mesh;
    if (mesh != NULL) {
        Py_DECREF(mesh_close(self, NULL));
        for (size_t i = 0; i < mesh->num_readings; i++) Py_DECREF((PyObject *)mesh->readings[i].owner);
        for (int rank = 0; rank < mesh->size; rank++) {
            Link *link = mesh->links[rank];
            if (link == NULL) continue;
            for (Message *message = link->messages, *next; message != NULL; message = next) {
                next = message->next;
                free(message->staged);
                free(message);
            }
            free(link->stage);
            free(link->text);
            free(link);
        }
        for (News *news = mesh->news, *next; news != NULL; news = next) {
            next = news->next;
            free(news);
        }
        free(mesh->links);
        free(mesh->regions);
        free(mesh->readings);
        free(mesh->notices);
        free(mesh->garbage);
        pthread_mutex_destroy(&mesh->lock);
        free(mesh);
    }
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* -- Mesh: out -------------------------------------------------------------------------------------------------------- */
/* put(rank, kind, segment, offset, keeper, address, num_bytes, id, value, round, queue): bytes of `keeper`, which stays
   until they have left */
static PyObject *mesh_put(MeshObject *self, PyObject *const *args, Py_ssize_t num_args) {
    if (num_args != 11) return PyErr_Format(PyExc_TypeError, "put takes 11 arguments, got %zd", num_args);
    unsigned long long numbers[11] = {0};
    for (int i = 0; i < 11; i++) {
        if (i == 4) continue;
        numbers[i] = PyLong_AsUnsignedLongLong(args[i]);
        if (numbers[i] == (unsigned long long)-1 && PyErr_Occurred()) return NULL;
    }
    if (numbers[10] >= NUM_QUEUES) return PyErr_Format(PyExc_ValueError, "there is no queue %llu", numbers[10]);
    Mesh *mesh = self->mesh;
    Link *link = link_to(mesh, (int)numbers[0]);
    Parcel *parcel = link == NULL ? NULL : calloc(1, sizeof(Parcel));
    if (parcel == NULL) return link == NULL ? NULL : PyErr_NoMemory();
    parcel->header = (Header){.kind = (uint8_t)numbers[1],
                              .segment = (uint32_t)numbers[2],
                              .offset = numbers[3],
                              .id = (uint32_t)numbers[7],
                              .value = numbers[8]};
    parcel->payload = (const char *)(uintptr_t)numbers[5];
    parcel->length = numbers[6];
    parcel->round = numbers[9];
    parcel->queue = (uint32_t)numbers[10];
    if (parcel->length > 0) parcel->owner = Py_NewRef(args[4]);
    give_away(mesh, link, parcel, parcel->length);
    Py_RETURN_NONE;
}

/* say(rank, kind, segment, offset, id, value, text, round, queue): a frame of its own, of which a copy is kept */
static PyObject *mesh_say(MeshObject *self, PyObject *args) {
    int rank;
    unsigned char kind;
    unsigned int segment, id, queue;
    unsigned long long offset, value, round;
    Py_buffer text;
    if (!PyArg_ParseTuple(args, "ibIKIKy*KI", &rank, &kind, &segment, &offset, &id, &value, &text, &round, &queue))
        return NULL;
    Link *link = link_to(self->mesh, rank);
    Parcel *parcel = link == NULL ? NULL : calloc(1, sizeof(Parcel) + (size_t)text.len);
    if (parcel != NULL) {
        parcel->header = (Header){.kind = kind, .segment = segment, .offset = offset, .id = id, .value = value};
        parcel->payload = (char *)(parcel + 1);
        parcel->length = (size_t)text.len;
        memcpy(parcel + 1, text.buf, (size_t)text.len);
        parcel->round = round;
        parcel->queue = queue;
        give_away(self->mesh, link, parcel, parcel->length);
    } else if (link != NULL) {
        PyErr_NoMemory();
    }
    PyBuffer_Release(&text);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

/* send(rank, tag, keeper, address, num_bytes) -> Operation */
static PyObject *mesh_send(MeshObject *self, PyObject *args) {
    int rank;
    unsigned long long tag, address, length;
    PyObject *keeper;
    if (!PyArg_ParseTuple(args, "iKOKK", &rank, &tag, &keeper, &address, &length)) return NULL;
    Link *link = link_to(self->mesh, rank);
    OperationObject *made = link == NULL ? NULL : new_operation(self, tag, NULL, length, keeper);
    Parcel *parcel = made == NULL ? NULL : calloc(1, sizeof(Parcel));
    if (parcel == NULL) {
        Py_XDECREF(made);
        return link == NULL || made == NULL ? NULL : PyErr_NoMemory();
    }
    parcel->header = (Header){.kind = MESSAGE, .segment = (uint32_t)length, .id = (uint32_t)(length >> 32), .value = tag};
    parcel->payload = (const char *)(uintptr_t)address;
    parcel->length = length;
    parcel->operation = made->operation;
    give_away(self->mesh, link, parcel, length);
    return (PyObject *)made;
}

/* recv(rank, tag, keeper, address, num_bytes) -> Operation */
static PyObject *mesh_recv(MeshObject *self, PyObject *args) {
    int rank;
    unsigned long long tag, address, length;
    PyObject *keeper;
    if (!PyArg_ParseTuple(args, "iKOKK", &rank, &tag, &keeper, &address, &length)) return NULL;
    Link *link = link_to(self->mesh, rank);
    OperationObject *made = link == NULL ? NULL : new_operation(self, tag, (char *)(uintptr_t)address, length, keeper);
    if (made == NULL) return NULL;
    pthread_mutex_lock(&self->mesh->lock);
    post_receive(self->mesh, link, made->operation);
    pthread_mutex_unlock(&self->mesh->lock);
    collect(self->mesh);
    return (PyObject *)made;
}

/* expect(number, keeper, address, num_bytes): where the answer to a read goes */
static PyObject *mesh_expect(MeshObject *self, PyObject *args) {
    Mesh *mesh = self->mesh;
    unsigned int number;
    unsigned long long address, length;
    PyObject *keeper;
    if (!PyArg_ParseTuple(args, "IOKK", &number, &keeper, &address, &length)) return NULL;
    pthread_mutex_lock(&mesh->lock);
    mesh->readings = realloc(mesh->readings, (mesh->num_readings + 1) * sizeof(Reading));
    mesh->readings[mesh->num_readings++] = (Reading){number, (char *)(uintptr_t)address, length, Py_NewRef(keeper)};
    pthread_mutex_unlock(&mesh->lock);
    Py_RETURN_NONE;
}

/* drop(rank): nothing is sent to a peer any more */
static PyObject *mesh_drop(MeshObject *self, PyObject *argument) {
    Link *link = link_to(self->mesh, (int)PyLong_AsLong(argument));
    if (link == NULL) return NULL;
    pthread_mutex_lock(&self->mesh->lock);
    link->has_left = true;
    drop_parcels(self->mesh, link);
    pthread_mutex_unlock(&self->mesh->lock);
    collect(self->mesh);
    Py_RETURN_NONE;
}

/* waiting(rank) -> parcels that have not left */
static PyObject *mesh_waiting(MeshObject *self, PyObject *argument) {
    Link *link = link_to(self->mesh, (int)PyLong_AsLong(argument));
    return link == NULL ? NULL : PyLong_FromLong(link->num_waiting);
}

/* ages(rank) -> seconds since a peer was heard of, and since it was sent a frame */
static PyObject *mesh_ages(MeshObject *self, PyObject *argument) {
    Link *link = link_to(self->mesh, (int)PyLong_AsLong(argument));
    if (link == NULL) return NULL;
    double now = now_s();
    return Py_BuildValue("dd", now - link->heard_s, now - link->said_s);
}

/* forgive(): silence counts from now on */
static PyObject *mesh_forgive(MeshObject *self, PyObject *unused) {
    (void)unused;
    for (int rank = 0; rank < self->mesh->size; rank++)
        if (self->mesh->links[rank] != NULL) self->mesh->links[rank]->heard_s = now_s();
    Py_RETURN_NONE;
}

/* look(rank): reads what has come without having been announced */
static PyObject *mesh_look(MeshObject *self, PyObject *argument) {
    Link *link = link_to(self->mesh, (int)PyLong_AsLong(argument));
    if (link == NULL) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    pthread_mutex_lock(&self->mesh->lock);
    receive(self->mesh, link, true);
    pthread_mutex_unlock(&self->mesh->lock);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

/* -- Mesh: notifications ---------------------------------------------------------------------------------------------- */
static PyObject *mesh_post(MeshObject *self, PyObject *args) {
    unsigned int id, value;
    if (!PyArg_ParseTuple(args, "II", &id, &value)) return NULL;
    pthread_mutex_lock(&self->mesh->lock);
    post_notice(self->mesh, id, value);
    pthread_mutex_unlock(&self->mesh->lock);
    Py_RETURN_NONE;
}

/* leave(): a peer has left in peace; `take` returns */
static PyObject *mesh_leave(MeshObject *self, PyObject *unused) {
    (void)unused;
    pthread_mutex_lock(&self->mesh->lock);
    self->mesh->num_left++;
    notify(self->mesh);
    pthread_mutex_unlock(&self->mesh->lock);
    Py_RETURN_NONE;
}

static int compare_ids(const void *a, const void *b) {
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return left < right ? -1 : left > right;
}

static bool is_wanted(const Waiter *waiter, uint32_t id) {
    if (waiter->ids == NULL) return waiter->first_id <= id && id < waiter->last_id;
    return bsearch(&id, waiter->ids, waiter->num_ids, sizeof id, compare_ids) != NULL;
}

static bool has_notice(Mesh *mesh, Waiter *waiter) {
    if (waiter->also_if_left && mesh->num_left != mesh->left_told) return true;
    for (size_t i = 0; i < mesh->num_notices; i++)
        if (is_wanted(waiter, mesh->notices[i].id)) return true;
    return false;
}

/* Reads a collection of ids; what `ids` points to has to be freed. */
static bool read_ids(PyObject *ids, Waiter *waiter) {
    if (PyRange_Check(ids)) {
        PyObject *first = PyObject_GetAttrString(ids, "start"), *last = PyObject_GetAttrString(ids, "stop");
        PyObject *step = PyObject_GetAttrString(ids, "step");
        bool is_plain = first && last && step && PyLong_AsLong(step) == 1;
        if (is_plain) {
            waiter->first_id = PyLong_AsUnsignedLongLong(first);
            waiter->last_id = PyLong_AsUnsignedLongLong(last);
        }
        Py_XDECREF(first);
        Py_XDECREF(last);
        Py_XDECREF(step);
        if (PyErr_Occurred()) return false;
        if (is_plain) return true;
    }
    PyObject *items = PySequence_Fast(ids, "ids must be a collection of numbers");
    if (items == NULL) return false;
    Py_ssize_t number = PySequence_Fast_GET_SIZE(items);
    uint32_t *found = malloc((size_t)(number + 1) * sizeof(uint32_t));
    for (Py_ssize_t i = 0; i < number; i++)
        found[i] = (uint32_t)PyLong_AsUnsignedLong(PySequence_Fast_GET_ITEM(items, i));
    Py_DECREF(items);
    qsort(found, (size_t)number, sizeof(uint32_t), compare_ids);
    waiter->ids = found;
    waiter->num_ids = (size_t)number;
    if (PyErr_Occurred()) {
        free(found);
        return false;
    }
    return true;
}

/* waitsome(ids, timeout_s) -> an id that has a value; None if none has in time, -1 if all is over */
static PyObject *mesh_waitsome(MeshObject *self, PyObject *args) {
    Mesh *mesh = self->mesh;
    Waiter waiter = {.is_over = has_notice};
    PyObject *ids, *answer = NULL;
    double timeout_s;
    if (!PyArg_ParseTuple(args, "Od", &ids, &timeout_s) || !read_ids(ids, &waiter)) return NULL;
    int result = wait_in_python(mesh, &waiter, timeout_s, true);
    if (result >= 0) {
        uint32_t found = 0;
        for (size_t i = mesh->num_notices; i-- > 0;)
            if (is_wanted(&waiter, mesh->notices[i].id)) found = mesh->notices[i].id;
        pthread_mutex_unlock(&mesh->lock);
        answer = result == OVER        ? PyLong_FromUnsignedLong(found)
                 : result == TIMED_OUT ? Py_NewRef(Py_None)
                                       : PyLong_FromLong(-1);
    }
    free((void *)waiter.ids);
    collect(mesh);
    return answer;
}

/* take(ids, timeout_s) -> [(id, value), …], empty if a peer has left; None if none came in time, -1 if all is over */
static PyObject *mesh_take(MeshObject *self, PyObject *args) {
    Mesh *mesh = self->mesh;
    Waiter waiter = {.is_over = has_notice, .also_if_left = true};
    PyObject *ids;
    double timeout_s;
    if (!PyArg_ParseTuple(args, "Od", &ids, &timeout_s) || !read_ids(ids, &waiter)) return NULL;
    int result = wait_in_python(mesh, &waiter, timeout_s, true);
    Notice *taken = NULL;
    size_t number = 0, kept = 0;
    if (result >= 0) {
        taken = malloc((mesh->num_notices + 1) * sizeof(Notice));
        for (size_t i = 0; i < mesh->num_notices && result != BROKEN; i++) {
            if (is_wanted(&waiter, mesh->notices[i].id))
                taken[number++] = mesh->notices[i];
            else
                mesh->notices[kept++] = mesh->notices[i];
        }
        if (result != BROKEN) mesh->num_notices = kept;
        if (number == 0) mesh->left_told = mesh->num_left;
        pthread_mutex_unlock(&mesh->lock);
    }
    free((void *)waiter.ids);
    collect(mesh);
    PyObject *answer = NULL;
    if (result == BROKEN) {
        answer = PyLong_FromLong(-1);
    } else if (result == TIMED_OUT && timeout_s > 0) {
        answer = Py_NewRef(Py_None);
    } else if (result >= 0) {
        answer = PyList_New((Py_ssize_t)number);
        for (size_t i = 0; answer != NULL && i < number; i++) {
            PyObject *pair = Py_BuildValue("II", taken[i].id, taken[i].value);
            if (pair == NULL)
                Py_CLEAR(answer);
            else
                PyList_SET_ITEM(answer, (Py_ssize_t)i, pair);
        }
    }
    free(taken);
    return answer;
}

/* reset(id) -> its value, which is gone then; 0 if there is none */
static PyObject *mesh_reset(MeshObject *self, PyObject *argument) {
    Mesh *mesh = self->mesh;
    unsigned long id = PyLong_AsUnsignedLong(argument);
    if (id == (unsigned long)-1 && PyErr_Occurred()) return NULL;
    uint32_t value = 0;
    pthread_mutex_lock(&mesh->lock);
    for (size_t i = 0; i < mesh->num_notices; i++) {
        if (mesh->notices[i].id != id) continue;
        value = mesh->notices[i].value;
        memmove(mesh->notices + i, mesh->notices + i + 1, (--mesh->num_notices - i) * sizeof(Notice));
        break;
    }
    pthread_mutex_unlock(&mesh->lock);
    return PyLong_FromUnsignedLong(value);
}

static bool queue_is_empty(Mesh *mesh, Waiter *waiter) { return mesh->outstanding[waiter->queue] == 0; }

/* flushed(queue, timeout_s) -> True when all that was put into it has left; False if it takes longer, -1 if all is over */
static PyObject *mesh_flushed(MeshObject *self, PyObject *args) {
    Waiter waiter = {.is_over = queue_is_empty};
    double timeout_s;
    if (!PyArg_ParseTuple(args, "id", &waiter.queue, &timeout_s)) return NULL;
    if (waiter.queue < 0 || waiter.queue >= NUM_QUEUES) return PyErr_Format(PyExc_ValueError, "queue %d", waiter.queue);
    int result = wait_in_python(self->mesh, &waiter, timeout_s, true);
    if (result < 0) return NULL;
    pthread_mutex_unlock(&self->mesh->lock);
    collect(self->mesh);
    return result == BROKEN ? PyLong_FromLong(-1) : PyBool_FromLong(result == OVER);
}

/* -- Mesh: service ---------------------------------------------------------------------------------------------------- */
/* serve(timeout_s) -> news: (rank, what, error, header, text), what = 0 a frame, 1 one that must not come, 2 the end of
   the link. Serves the connections meanwhile; one thread calls it, again and again. */
static PyObject *mesh_serve(MeshObject *self, PyObject *argument) {
    Mesh *mesh = self->mesh;
    double timeout_s = PyFloat_AsDouble(argument);
    if (timeout_s == -1.0 && PyErr_Occurred()) return NULL;
    News *news;
    Py_BEGIN_ALLOW_THREADS;
    pthread_mutex_lock(&mesh->lock);
    serve(mesh, now_s() + timeout_s);
    news = mesh->news;
    mesh->news = NULL;
    mesh->last_news = &mesh->news;
    pthread_mutex_unlock(&mesh->lock);
    Py_END_ALLOW_THREADS;
    collect(mesh);
    PyObject *answer = PyList_New(0);
    while (news != NULL) {
        News *next = news->next;
        const Header *header = &news->header;
        PyObject *entry =
            Py_BuildValue("iii(iIKIIK)y#", news->rank, (int)news->what, news->error, (int)header->kind, header->segment,
                          (unsigned long long)header->offset, header->length, header->id,
                          (unsigned long long)header->value, news->text, (Py_ssize_t)news->length);
        if (entry == NULL || answer == NULL || PyList_Append(answer, entry) < 0) Py_CLEAR(answer);
        Py_XDECREF(entry);
        free(news);
        news = next;
    }
    return answer;
}

static PyMethodDef mesh_methods[] = {
    {"connect", (PyCFunction)mesh_connect, METH_VARARGS, NULL},
    {"expose", (PyCFunction)mesh_expose, METH_VARARGS, NULL},
    {"fail", (PyCFunction)mesh_fail, METH_NOARGS, NULL},
    {"close", (PyCFunction)mesh_close, METH_NOARGS, NULL},
    {"put", (PyCFunction)(void (*)(void))mesh_put, METH_FASTCALL, NULL},
    {"say", (PyCFunction)mesh_say, METH_VARARGS, NULL},
    {"send", (PyCFunction)mesh_send, METH_VARARGS, NULL},
    {"recv", (PyCFunction)mesh_recv, METH_VARARGS, NULL},
    {"expect", (PyCFunction)mesh_expect, METH_VARARGS, NULL},
    {"drop", (PyCFunction)mesh_drop, METH_O, NULL},
    {"waiting", (PyCFunction)mesh_waiting, METH_O, NULL},
    {"ages", (PyCFunction)mesh_ages, METH_O, NULL},
    {"forgive", (PyCFunction)mesh_forgive, METH_NOARGS, NULL},
    {"look", (PyCFunction)mesh_look, METH_O, NULL},
    {"post", (PyCFunction)mesh_post, METH_VARARGS, NULL},
    {"leave", (PyCFunction)mesh_leave, METH_NOARGS, NULL},
    {"waitsome", (PyCFunction)mesh_waitsome, METH_VARARGS, NULL},
    {"take", (PyCFunction)mesh_take, METH_VARARGS, NULL},
    {"reset", (PyCFunction)mesh_reset, METH_O, NULL},
    {"flushed", (PyCFunction)mesh_flushed, METH_VARARGS, NULL},
    {"serve", (PyCFunction)mesh_serve, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject MeshType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "poseidon.transport.native._mesh.Mesh",
    .tp_basicsize = sizeof(MeshObject),
    .tp_dealloc = (destructor)mesh_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_methods = mesh_methods,
    .tp_new = mesh_new,
};

static PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "_mesh", .m_size = -1};

PyMODINIT_FUNC PyInit__mesh(void) {
    if (PyType_Ready(&MeshType) < 0 || PyType_Ready(&OperationType) < 0) return NULL;
    PyObject *made = PyModule_Create(&module);
    if (made == NULL || PyModule_AddObjectRef(made, "Mesh", (PyObject *)&MeshType) < 0) return NULL;
    return made;
}
