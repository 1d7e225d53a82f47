/* Sends: the methods of Mesh by which bytes leave and messages are asked for, and the type Operation. */

#include "module.h"

#include <stdlib.h>
#include <string.h>

enum { KEEPS_LOCK_BYTES = 16 << 10 }; /* shorter ones are sent without giving up Python's lock: that takes longer */

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

PyTypeObject OperationType = {
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

/* -- Mesh -------------------------------------------------------------------------------------------------------- */
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

PyMethodDef send_methods[] = {
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
    {NULL, NULL, 0, NULL},
};
