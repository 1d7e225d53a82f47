/* What the files of the Python face share: the types Mesh and Operation, and how to wait and let go with Python's lock. */

#ifndef POSEIDON_MODULE_H
#define POSEIDON_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "mesh.h"

typedef struct {
    PyObject_HEAD
    Mesh *mesh;
} MeshObject;

typedef struct {
    PyObject_HEAD
    MeshObject *owner;
    Operation *operation;
} OperationObject;

extern PyTypeObject OperationType;

/* module.c */
void collect(Mesh *mesh);
Link *link_to(Mesh *mesh, int rank);
int wait_in_python(Mesh *mesh, Waiter *waiter, double timeout_s, bool is_failure_end);

/* methods: of sends.c, of notices.c; each ends with an empty one */
extern PyMethodDef send_methods[], notice_methods[];

#endif
