// The store of descriptors and attributes.
#include "cudnn/descriptors.h"

descriptor *new_descriptor(int type) {
  descriptor *created = calloc(1, sizeof *created);
  if (!created) return NULL;
  created->magic = DESCRIPTOR_MAGIC;
  created->type = type;
  atomic_init(&created->references, 1);
  return created;
}

const kind *kind_of(int type) {
#define KIND(NUMBER, NAME, LOW, HIGH, A, B, C, D) {NUMBER, #NAME, LOW, HIGH, {A, B, C, D}},
  static const kind kinds[] = {CUDNN_DESCRIPTORS(KIND)};
  return type >= 0 && type < (int)(sizeof kinds / sizeof *kinds) ? &kinds[type] : NULL;
}
size_t element_size(int type) {
#define SIZE(NAME, NUMBER, BYTES) \
  case NUMBER:                    \
    return BYTES;
  switch (type) { CUDNN_ATTRIBUTE_TYPES(SIZE) }
  return 0;
}

static void clear_entry(entry *e) {
  if (e->type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
    for (int64_t i = 0; i < e->count; i++) release(((descriptor **)e->data)[i]);
  free(e->data);
}
void clear(descriptor *self) {
  for (int i = 0; i < self->entries; i++) clear_entry(&self->entry[i]);
  free(self->entry);
  if (self->plan) free(self->plan->output);
  free(self->plan);
  self->entry = NULL;
  self->plan = NULL;
  self->entries = self->room = 0;
}
void release(descriptor *self) {
  if (!self || atomic_fetch_sub(&self->references, 1) > 1) return;
  clear(self);
  self->magic = 0;
  free(self);
}
entry *find(const descriptor *self, int name) {
  for (int i = 0; self && i < self->entries; i++)
    if (self->entry[i].name == name) return &self->entry[i];
  return NULL;
}
bool store(descriptor *self, int name, int type, int64_t count, const void *elements) {
  size_t bytes = element_size(type) * (size_t)count;
  void *data = malloc(bytes ? bytes : 1);
  if (!data) return false;
  if (bytes) memcpy(data, elements, bytes);
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
    for (int64_t i = 0; i < count; i++)
      if (((descriptor **)data)[i]) atomic_fetch_add(&((descriptor **)data)[i]->references, 1);
  entry *e = find(self, name);
  if (e) {
    clear_entry(e);
  } else {
    if (self->entries == self->room) {
      int room = self->room ? 2 * self->room : 8;
      entry *grown = realloc(self->entry, (size_t)room * sizeof *grown);
      if (!grown) return free(data), false;
      self->entry = grown;
      self->room = room;
    }
    e = &self->entry[self->entries++];
  }
  *e = (entry){name, type, count, data};
  return true;
}
bool copy_into(descriptor *to, const descriptor *from) {
  clear(to);
  to->finalised = from->finalised;
  for (int i = 0; i < from->entries; i++)
    if (!store(to, from->entry[i].name, from->entry[i].type, from->entry[i].count, from->entry[i].data)) return false;
  return true;
}

int64_t integer(const descriptor *self, int name) {
  const entry *e = find(self, name);
  if (!e || !e->count) return 0;
  switch (element_size(e->type)) {
    case 1:
      return *(const int8_t *)e->data;
    case 4:
      return *(const int32_t *)e->data;
    default:
      return *(const int64_t *)e->data;
  }
}
const descriptor *child(const descriptor *self, int name) {
  const entry *e = find(self, name);
  return e && e->count && e->type == CUDNN_TYPE_BACKEND_DESCRIPTOR ? ((descriptor **)e->data)[0] : NULL;
}
int64_t list(const descriptor *self, int name, const int64_t **values) {
  const entry *e = find(self, name);
  *values = e && e->type == CUDNN_TYPE_INT64 ? e->data : NULL;
  return *values ? e->count : 0;
}
