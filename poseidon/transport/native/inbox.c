/* Inbox: what comes in, and where it goes: puts into segments, answers to where they were asked for, messages to their
   receives or aside until somebody asks; everything else is news for Python. */

#include "mesh.h"

#include <stdlib.h>
#include <string.h>

static const uint32_t LAST_VALUE = UINT32_MAX;

void add_news(Mesh *mesh, int rank, int what, int error, const Header *header, const char *text, size_t length) {
    News *news = malloc(sizeof(News) + length);
    *news = (News){.rank = rank, .what = what, .error = error, .length = length};
    if (header != NULL) news->header = *header;
    if (length > 0) memcpy(news->text, text, length);
    *mesh->last_news = news;
    mesh->last_news = &news->next;
    notify(mesh);
}

/* -- notifications ---------------------------------------------------------------------------------------------------- */
/* Whether a version comes after another, if they are less than half a round apart; 0 is no version (base.py). */
static bool is_newer(uint32_t value, uint32_t than) {
    uint32_t ahead = value >= than ? value - than : value + (LAST_VALUE - than);
    return 0 < ahead && ahead <= LAST_VALUE / 2;
}

void post_notice(Mesh *mesh, uint32_t id, uint32_t value) {
    for (size_t i = 0; i < mesh->num_notices; i++) {
        if (mesh->notices[i].id != id) continue;
        if (is_newer(value, mesh->notices[i].value)) mesh->notices[i].value = value;
        return; /* whoever waits for it has been told */
    }
    if (mesh->num_notices == mesh->room_notices) {
        mesh->room_notices = 2 * mesh->room_notices + 64;
        mesh->notices = realloc(mesh->notices, mesh->room_notices * sizeof(Notice));
    }
    mesh->notices[mesh->num_notices++] = (Notice){id, value};
    notify(mesh);
}

/* -- messages --------------------------------------------------------------------------------------------------------- */
static size_t whole_length(const Header *frame) { return (size_t)frame->segment | (size_t)frame->id << 32; }

static Operation *take_posted(Link *link, uint64_t tag) {
    for (Operation **place = &link->posted; *place != NULL; place = &(*place)->next) {
        if ((*place)->tag != tag) continue;
        Operation *found = *place;
        *place = found->next;
        found->next = NULL;
        return found;
    }
    return NULL;
}

/* The message that a frame continues: of one tag, only the newest can be incomplete. */
static Message *under_way(Link *link, const Header *frame) {
    for (Message *message = link->messages; message != NULL; message = message->next)
        if (message->tag == frame->value && message->arrived < message->length) return message;
    return NULL;
}

static void append_message(Link *link, Message *message) {
    Message **place = &link->messages;
    while (*place != NULL) place = &(*place)->next;
    *place = message;
}

static void remove_message(Link *link, Message *message) {
    Message **place = &link->messages;
    while (*place != message) place = &(*place)->next;
    *place = message->next;
    free(message->staged);
    free(message);
}

static Message *begin_message(Mesh *mesh, Link *link, const Header *frame) {
    Message *message = calloc(1, sizeof(Message));
    message->tag = frame->value;
    message->length = whole_length(frame);
    Operation *posted = take_posted(link, message->tag);
    if (posted != NULL && posted->length != message->length) {
        end_operation(mesh, posted, FAILED);
        free(message);
        return NULL;
    }
    message->operation = posted;
    if (posted == NULL && (message->staged = malloc(message->length)) == NULL) {
        free(message);
        return NULL;
    }
    append_message(link, message);
    return message;
}

/* Somebody has asked for a message that had begun to be kept aside: the rest goes straight to where it is wanted. */
static void stop_staging(Message *message) {
    if (message->staged == NULL) return;
    memcpy(message->operation->memory, message->staged, message->arrived);
    free(message->staged);
    message->staged = NULL;
}

static void end_message(Mesh *mesh, Link *link, Message *message) {
    Operation *operation = message->operation;
    if (operation == NULL) return; /* it waits to be asked for */
    stop_staging(message);
    remove_message(link, message);
    end_operation(mesh, operation, DONE);
}

/* A receive: of what is here already, or of what will come. */
void post_receive(Mesh *mesh, Link *link, Operation *operation) {
    for (Message *message = link->messages; message != NULL; message = message->next) {
        if (message->tag != operation->tag || message->operation != NULL) continue;
        if (message->length != operation->length) {
            end_operation(mesh, operation, FAILED);
            return;
        }
        message->operation = operation;
        if (message->arrived == message->length) end_message(mesh, link, message);
        return;
    }
    if (!link->is_open) {
        end_operation(mesh, operation, FAILED);
        return;
    }
    Operation **place = &link->posted;
    while (*place != NULL) place = &(*place)->next;
    *place = operation;
}

/* Nothing comes any more: what is here whole can still be asked for. */
void drop_messages(Mesh *mesh, Link *link) {
    while (link->posted != NULL) {
        Operation *operation = link->posted;
        link->posted = operation->next;
        end_operation(mesh, operation, FAILED);
    }
    for (Message *message = link->messages, *next; message != NULL; message = next) {
        next = message->next;
        if (message->arrived == message->length) continue;
        if (message->operation != NULL) end_operation(mesh, message->operation, FAILED);
        remove_message(link, message);
    }
}

/* -- frames ----------------------------------------------------------------------------------------------------------- */
static char *place_in(char *memory, size_t memory_bytes, uint64_t offset, size_t length) {
    return offset <= memory_bytes && length <= memory_bytes - offset ? memory + offset : NULL;
}

/* Memory for a frame's payload; NULL for what must not come. */
char *room_for(Mesh *mesh, Link *link, const Header *frame) {
    if (frame->kind == LOST && frame->length <= MAX_TEXT_BYTES) return link->text;
    if (frame->length > MAX_FRAME_BYTES) return NULL;
    if (frame->kind == PUT) {
        for (size_t i = 0; i < mesh->num_regions; i++)
            if (mesh->regions[i].number == frame->segment)
                return place_in(mesh->regions[i].memory, mesh->regions[i].length, frame->offset, frame->length);
    } else if (frame->kind == DATA) {
        for (size_t i = 0; i < mesh->num_readings; i++)
            if (mesh->readings[i].number == frame->id)
                return place_in(mesh->readings[i].memory, mesh->readings[i].length, frame->offset, frame->length);
    } else if (frame->kind == MESSAGE) {
        Message *message = frame->offset == 0 ? begin_message(mesh, link, frame) : under_way(link, frame);
        if (message == NULL || message->arrived != frame->offset) return NULL;
        if (message->operation != NULL) stop_staging(message);
        char *memory = message->staged != NULL ? message->staged : message->operation->memory;
        return place_in(memory, message->length, frame->offset, frame->length);
    }
    return NULL;
}

static void end_reading(Mesh *mesh, uint32_t number) {
    for (size_t i = 0; i < mesh->num_readings; i++) {
        if (mesh->readings[i].number != number) continue;
        discard(mesh, mesh->readings[i].owner);
        mesh->readings[i] = mesh->readings[--mesh->num_readings];
        return;
    }
}

/* A frame is complete. False: one that must not come. */
bool arrived(Mesh *mesh, Link *link, const Header *frame) {
    switch (frame->kind) {
    case PUT:
        if (frame->value != 0) post_notice(mesh, frame->id, (uint32_t)frame->value);
        return true;
    case MESSAGE: {
        Message *message = under_way(link, frame);
        if (message == NULL) return false;
        message->arrived += frame->length;
        if (message->arrived == message->length) end_message(mesh, link, message);
        return true;
    }
    case DATA:
        if (frame->value != 0) {
            end_reading(mesh, frame->id);
            add_news(mesh, link->rank, FRAME, 0, frame, NULL, 0);
        }
        return true;
    case BEAT:
        return true;
    case LOST:
        link->has_left = true; /* it ends now */
        add_news(mesh, link->rank, FRAME, 0, frame, link->text, frame->length);
        return true;
    case BYE:
        link->has_left = true;
        add_news(mesh, link->rank, FRAME, 0, frame, NULL, 0);
        return true;
    case READ:
    case SEGMENT:
        add_news(mesh, link->rank, FRAME, 0, frame, NULL, 0);
        return true;
    default:
        return false;
    }
}
