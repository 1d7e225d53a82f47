/* The Python face of a mesh: types Mesh and Operation. What can be said in Python is said there (../onesided/native.py,
   ../messages.py); here is only what has to be quick, or to go on without Python's lock. */

#include "module.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

static PyTypeObject MeshType;

/* -- helpers ---------------------------------------------------------------------------------------------------------- */
/* Lets go of what nobody needs any more. Called with Python's lock, without the mesh's. */
void collect(Mesh *mesh) {
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

Link *link_to(Mesh *mesh, int rank) {
    if (rank < 0 || rank >= mesh->size || mesh->links[rank] == NULL) {
        PyErr_Format(PyExc_ValueError, "there is no link to rank %d", rank);
        return NULL;
    }
    return mesh->links[rank];
}

/* Waits, and lets Python look for signals now and then. Returns OVER, TIMED_OUT or BROKEN; -1 with an exception set. The
   mesh is locked afterwards, so that what was waited for can be taken. */
int wait_in_python(Mesh *mesh, Waiter *waiter, double timeout_s, bool is_failure_end) {
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

enum { MOST_METHODS = 40 };
static PyMethodDef own_methods[] = {
    {"connect", (PyCFunction)mesh_connect, METH_VARARGS, NULL},
    {"expose", (PyCFunction)mesh_expose, METH_VARARGS, NULL},
    {"fail", (PyCFunction)mesh_fail, METH_NOARGS, NULL},
    {"close", (PyCFunction)mesh_close, METH_NOARGS, NULL},
    {"serve", (PyCFunction)mesh_serve, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
static PyMethodDef mesh_methods[MOST_METHODS];

/* Puts the methods of all files together. */
static void gather_methods(void) {
    PyMethodDef *lists[] = {own_methods, send_methods, notice_methods};
    size_t number = 0;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        for (PyMethodDef *method = lists[i]; method->ml_name != NULL; method++) mesh_methods[number++] = *method;
}

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
    gather_methods();
    if (PyType_Ready(&MeshType) < 0 || PyType_Ready(&OperationType) < 0) return NULL;
    PyObject *made = PyModule_Create(&module);
    if (made == NULL || PyModule_AddObjectRef(made, "Mesh", (PyObject *)&MeshType) < 0) return NULL;
    return made;
}
