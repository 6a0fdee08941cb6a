// Common parts of the stubs of math libraries: a description of one call, turned into one kernel.
//
// A call is described by fields (dimensions, types, modes). Their values make the key under which
// the runtime keeps the text, so the JSON is written once per distinct call and not per launch.
// Every description carries "flops" and "bytes" (the operands read and written once), from which a
// cost model that does not know the call can still bound its duration.
#pragma once
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "abi/export.h"
#include "rank/rank.h"

// Brackets an entry point for the measured host mode: PH_BRACKET(work(...)).
#define PH_BRACKET(expression) (ph_enter(), ph_bracket_end((int)(expression)))
static inline int ph_bracket_end(int status) {
  ph_leave();
  return status;
}

// ---------------------------------------------------------------- data types (cudaDataType_t)
enum {
  PH_R_32F = 0,
  PH_R_64F = 1,
  PH_R_16F = 2,
  PH_R_8I = 3,
  PH_C_32F = 4,
  PH_C_64F = 5,
  PH_C_16F = 6,
  PH_C_8I = 7,
  PH_R_8U = 8,
  PH_R_32I = 10,
  PH_R_16BF = 14,
  PH_C_16BF = 15,
  PH_R_64I = 24,
  PH_R_8F_E4M3 = 28,
  PH_R_8F_E5M2 = 29,
  PH_R_8F_UE8M0 = 30,
  PH_R_4F_E2M1 = 33,
};

typedef struct ph_dtype {
  int id;
  const char *name;
  int bits;
  bool complex_number;
} ph_dtype;

// NULL for a type that no library here takes.
static inline const ph_dtype *ph_dtype_of(int id) {
  static const ph_dtype table[] = {
      {PH_R_32F, "f32", 32, false},      {PH_R_64F, "f64", 64, false},     {PH_R_16F, "f16", 16, false},
      {PH_R_8I, "i8", 8, false},         {PH_C_32F, "c64", 64, true},      {PH_C_64F, "c128", 128, true},
      {PH_C_16F, "c32", 32, true},       {PH_C_8I, "ci8", 16, true},       {PH_R_8U, "u8", 8, false},
      {PH_R_32I, "i32", 32, false},      {PH_R_16BF, "bf16", 16, false},   {PH_C_16BF, "cbf16", 32, true},
      {PH_R_64I, "i64", 64, false},      {PH_R_8F_E4M3, "e4m3", 8, false}, {PH_R_8F_E5M2, "e5m2", 8, false},
      {PH_R_8F_UE8M0, "e8m0", 8, false}, {PH_R_4F_E2M1, "e2m1", 4, false},
  };
  for (size_t i = 0; i < sizeof table / sizeof *table; i++)
    if (table[i].id == id) return &table[i];
  return NULL;
}
static inline double ph_dtype_bytes(const ph_dtype *type) { return type ? type->bits / 8.0 : 0; }
static inline const char *ph_dtype_name(const ph_dtype *type) { return type ? type->name : "unknown"; }

// ---------------------------------------------------------------- description of a call
#define PH_CALL_FIELDS 28
#define PH_CALL_VALUES 160
#define PH_CALL_TEXT 4096  // bytes of JSON; fits all fields at their longest

typedef struct ph_field {
  const char *key;
  const char *text;  // a string constant, or NULL
  int64_t number;    // value, or index of the first of `count` values
  uint16_t count;    // > 0: a list
  uint16_t named;    // appears in the kernel's name
  uint32_t unused;   // keeps the hashed bytes defined
} ph_field;

typedef struct ph_call {
  const char *library, *call;
  double flops, bytes;
  int fields, values;
  ph_field field[PH_CALL_FIELDS];
  int64_t value[PH_CALL_VALUES];
} ph_call;

static inline void ph_call_begin(ph_call *call, const char *library, const char *name) {
  call->library = library;
  call->call = name;
  call->flops = call->bytes = 0;
  call->fields = call->values = 0;
}
static inline ph_field *ph_call_field(ph_call *call, const char *key, bool named) {
  if (call->fields == PH_CALL_FIELDS) return NULL;
  ph_field *field = &call->field[call->fields++];
  *field = (ph_field){.key = key, .named = named};
  return field;
}
// `text` must be a string constant: its address stands for it in the key.
static inline void ph_call_text(ph_call *call, const char *key, const char *text, bool named) {
  ph_field *field = ph_call_field(call, key, named);
  if (field) field->text = text;
}
static inline void ph_call_number(ph_call *call, const char *key, int64_t number, bool named) {
  ph_field *field = ph_call_field(call, key, named);
  if (field) field->number = number;
}
static inline void ph_call_list(ph_call *call, const char *key, const int64_t *values, int count, bool named) {
  if (count <= 0 || call->values + count > PH_CALL_VALUES) return;
  ph_field *field = ph_call_field(call, key, named);
  if (!field) return;
  field->number = call->values;
  field->count = (uint16_t)count;
  memcpy(call->value + call->values, values, (size_t)count * sizeof *values);
  call->values += count;
}
static inline void ph_call_list32(ph_call *call, const char *key, const int *values, int count, bool named) {
  int64_t wide[16];
  if (count > 16) count = 16;
  for (int i = 0; i < count; i++) wide[i] = values[i];
  ph_call_list(call, key, wide, count, named);
}

static inline uint64_t ph_call_key(const ph_call *call) {
  const struct {
    const char *library, *call;
    double flops, bytes;
  } head = {call->library, call->call, call->flops, call->bytes};
  uint64_t key = ph_hash(&head, sizeof head, 0x6d6174686c696273ULL);
  key = ph_hash(call->field, (size_t)call->fields * sizeof *call->field, key);
  return call->values ? ph_hash(call->value, (size_t)call->values * sizeof *call->value, key) : key;
}

typedef struct ph_text {
  char data[PH_CALL_TEXT];
  size_t length;
} ph_text;
__attribute__((format(printf, 2, 3))) static inline void ph_text_add(ph_text *out, const char *format, ...) {
  __builtin_va_list arguments;
  __builtin_va_start(arguments, format);
  size_t room = sizeof out->data - out->length;
  int wrote = vsnprintf(out->data + out->length, room, format, arguments);
  __builtin_va_end(arguments);
  if (wrote > 0) out->length += (size_t)wrote < room ? (size_t)wrote : room - 1;
}

static inline void ph_call_json(const ph_call *call, ph_text *out) {
  out->length = 0;
  ph_text_add(out, "{\"lib\":\"%s\",\"call\":\"%s\"", call->library, call->call);
  for (int i = 0; i < call->fields; i++) {
    const ph_field *field = &call->field[i];
    ph_text_add(out, ",\"%s\":", field->key);
    if (field->text) {
      ph_text_add(out, "\"%s\"", field->text);
    } else if (field->count) {
      for (int j = 0; j < field->count; j++)
        ph_text_add(out, "%c%lld", j ? ',' : '[', (long long)call->value[field->number + j]);
      ph_text_add(out, "]");
    } else {
      ph_text_add(out, "%lld", (long long)field->number);
    }
  }
  ph_text_add(out, ",\"flops\":%.17g,\"bytes\":%.17g,\"name\":\"%s", call->flops, call->bytes, call->call);
  for (int i = 0; i < call->fields; i++) {
    const ph_field *field = &call->field[i];
    if (!field->named) continue;
    if (field->text) {
      ph_text_add(out, "_%s", field->text);
    } else if (field->count) {
      ph_text_add(out, "_%s", field->key);
      for (int j = 0; j < field->count; j++)
        ph_text_add(out, "%s%lld", j ? "x" : "", (long long)call->value[field->number + j]);
    } else {
      ph_text_add(out, "_%s%lld", field->key, (long long)field->number);
    }
  }
  ph_text_add(out, "\"}");
}

static inline bool ph_call_is_convolution(const ph_call *call) {
  return !strcmp(call->library, "cudnn") && !strncmp(call->call, "conv", 4);
}
static inline bool ph_call_is_product(const ph_call *call) { return !strcmp(call->call, "gemm"); }

// Number of kernels of a library for calls that differ in nothing but sizes. It is not known which sizes share one, but
// how often another is loaded (validation/probes/new_shapes.py): of 64 products with random lengths and one width 43,
// of the next 64 with another width 24, of the next 17, of the first once more 2. If sizes within a 16th of an octave
// draw one kernel of 128 it is 39, 27, 19 and 4. Batched products 8 and 10 of 64, in single precision without tensor
// cores 5; convolutions 1 to 4.
#define PH_GEMM_KERNELS 128
static inline uint64_t ph_call_kernels(const ph_call *call) {
  if (ph_call_is_convolution(call)) return 4;
  if (!ph_call_is_product(call)) return 1;
  bool tensor_cores = true, batched = false;
  for (int i = 0; i < call->fields; i++) {
    const ph_field *field = &call->field[i];
    if (!strcmp(field->key, "a") && field->text) tensor_cores &= strcmp(field->text, "f32") != 0;
    if (!strcmp(field->key, "compute") && field->text) tensor_cores |= !strcmp(field->text, "tf32");
    if (!strcmp(field->key, "batch")) batched = field->number > 1;
  }
  return !tensor_cores ? 8 : batched ? 24 : PH_GEMM_KERNELS;
}

static inline uint64_t ph_size_class(int64_t size) {  // 16ths of an octave
  if (size < 16) return (uint64_t)size;
  int octave = 63 - __builtin_clzll((unsigned long long)size);
  return (uint64_t)octave << 4 | ((uint64_t)size >> (octave - 4) & 15);
}

// The kernel of a call that was never made before. The same in every run: texts count, not their addresses.
static inline uint64_t ph_call_kernel(const ph_call *call) {
  uint64_t kind = ph_hash(call->call, strlen(call->call), ph_hash(call->library, strlen(call->library), 1)), sizes = 1;
  for (int i = 0; i < call->fields; i++) {
    const ph_field *field = &call->field[i];
    if (field->text) kind = ph_hash(field->text, strlen(field->text), kind);
    if (field->text || !strcmp(field->key, "k")) continue;  // an inner size alone loaded one kernel in 64
    for (int j = 0; j < (field->count ? field->count : 1); j++) {
      uint64_t size = ph_size_class(field->count ? call->value[field->number + j] : field->number);
      sizes = ph_hash(&size, sizeof size, sizes);
    }
  }
  uint64_t drawn = sizes % ph_call_kernels(call);
  return ph_hash(&drawn, sizeof drawn, kind);
}

// Host cost of a call in addition, because no call had its sizes before.
static inline void ph_call_is_new(const ph_call *call) {
  bool product = ph_call_is_product(call), convolution = ph_call_is_convolution(call);
  if (ph_kernel_is_new(ph_call_kernel(call))) ph_charge(convolution ? PH_API_CONV_LOAD : PH_API_LIBRARY_LOAD);
  if (product && ph_call_kernels(call) == PH_GEMM_KERNELS) ph_charge(PH_API_GEMM_SIZES);  // 10 to 20 us for others
}

// Sends the call as one kernel on `stream`.
static inline void ph_call_launch(const ph_call *call, const ph_stream *stream) {
  uint64_t key = ph_call_key(call);
  uint32_t id;
  if (ph_name_known(key, &id)) {
    ph_library_kernel(stream->id, key, NULL, 0);
    return;
  }
  ph_call_is_new(call);
  ph_text json;
  ph_call_json(call, &json);
  ph_library_kernel(stream->id, key, json.data, json.length);
}

// A library kernel wrote `bytes` at `pointer`. Inside an operator the tracer decides what the
// output holds (docs/values.md); a bare library call leaves zeros.
static inline void ph_wrote_output(void *pointer, double bytes) {
  if (pointer && bytes > 0 && !ph_top_frame()) ph_memory_clear(pointer, (size_t)bytes);
}
// Results that the host or a later check reads (error codes, pivots): "success" is zero.
static inline void ph_wrote_zero(void *pointer, size_t bytes) {
  if (!pointer || !bytes) return;
  ph_range range;
  if (ph_memory_find(pointer, &range))
    ph_memory_set(pointer, 0, bytes);
  else
    memset(pointer, 0, bytes);
}
// Waits until `stream` is empty: library calls that return a result in host memory.
static inline void ph_wait_stream(const ph_stream *stream) {
  ph_record record = {.kind = PH_STREAM_SYNC, .stream = stream->id, .slot = PH_NO_SLOT};
  ph_request(&record, NULL, 0);
}
