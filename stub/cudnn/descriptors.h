// The graph interface's typed store: descriptors, their attributes, and what a finished plan does.
#pragma once
#include <stdatomic.h>

#include "cudnn/handle.h"

#define DESCRIPTOR_MAGIC 0x70686e64u

typedef struct entry {
  int name, type;
  int64_t count;
  void *data;
} entry;

typedef struct output {
  int64_t uid;
  double bytes;
} output;

// Work of a finalised execution plan.
typedef struct summary {
  ph_call call;
  int outputs;
  output *output;
  int64_t workspace;
  bool largest;  // of the plans that a caller may try
  bool converts; // its kernels want another layout than its tensors have
} summary;

typedef struct descriptor {
  uint32_t magic;
  int type;
  atomic_int references;  // the user's and those of descriptors that were given it
  bool finalised;
  int entries, room;
  entry *entry;
  summary *plan;
} descriptor;

typedef struct kind {
  int type;
  const char *name;
  int low, high, needed[4];
} kind;

const kind *kind_of(int type);  // NULL for a descriptor type that is not known
size_t element_size(int type);  // bytes of one element of an attribute's type, 0 if unknown
static inline bool is_descriptor(const descriptor *self) { return self && self->magic == DESCRIPTOR_MAGIC; }

descriptor *new_descriptor(int type);
void release(descriptor *self);  // gives one reference back
void clear(descriptor *self);    // forgets attributes and plan
entry *find(const descriptor *self, int name);
// Stores a copy of the elements; sub-descriptors are shared. False without host memory.
bool store(descriptor *self, int name, int type, int64_t count, const void *elements);
bool copy_into(descriptor *to, const descriptor *from);

// Reading attributes of known types; absent ones read as 0 or NULL.
int64_t integer(const descriptor *self, int name);
const descriptor *child(const descriptor *self, int name);
int64_t list(const descriptor *self, int name, const int64_t **values);  // returns how many
