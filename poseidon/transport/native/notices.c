/* Notices: the methods of Mesh that deal with notifications. */

#include "module.h"

#include <stdlib.h>
#include <string.h>

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

PyMethodDef notice_methods[] = {
    {"post", (PyCFunction)mesh_post, METH_VARARGS, NULL},
    {"leave", (PyCFunction)mesh_leave, METH_NOARGS, NULL},
    {"waitsome", (PyCFunction)mesh_waitsome, METH_VARARGS, NULL},
    {"take", (PyCFunction)mesh_take, METH_VARARGS, NULL},
    {"reset", (PyCFunction)mesh_reset, METH_O, NULL},
    {"flushed", (PyCFunction)mesh_flushed, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
