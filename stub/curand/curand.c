// cuRAND, host interface: generators with real state, a generating call is one kernel. (torch draws
// its numbers with cuRAND's device functions and does not call this.) Numbers read as zero.
#include "rank/library.h"

#define GENERATOR_MAGIC 0x7068636e64303031ULL
enum {
  SUCCESS = 0,
  NOT_INITIALIZED = 101,
  ALLOCATION_FAILED = 102,
  TYPE_ERROR = 103,
  OUT_OF_RANGE = 104,
  LAUNCH_FAILURE = 201
};
enum { FIRST_TYPE = 100, LAST_TYPE = 204 };

typedef struct generator {
  uint64_t magic;
  int type;
  void *stream;
  unsigned long long seed, offset;
  int order;
  unsigned dimensions;
} generator;
static bool alive(const generator *self) { return self && self->magic == GENERATOR_MAGIC; }

PH_EXPORT int curandCreateGenerator(generator **out, int type) {
  if (!out) return OUT_OF_RANGE;
  if (type < FIRST_TYPE || type > LAST_TYPE) return TYPE_ERROR;
  generator *created = calloc(1, sizeof *created);
  if (!created) return ALLOCATION_FAILED;
  *created = (generator){.magic = GENERATOR_MAGIC, .type = type};
  *out = created;
  return SUCCESS;
}
PH_EXPORT int curandDestroyGenerator(generator *self) {
  if (!alive(self)) return NOT_INITIALIZED;
  self->magic = 0;
  free(self);
  return SUCCESS;
}
// clang-format off
#define STATES(X)                                                                  \
  X(Stream, void *, stream) X(PseudoRandomGeneratorSeed, unsigned long long, seed) \
  X(GeneratorOffset, unsigned long long, offset) X(GeneratorOrdering, int, order)  \
  X(QuasiRandomGeneratorDimensions, unsigned, dimensions)
// clang-format on
#define STATE(NAME, TYPE, FIELD)                               \
  PH_EXPORT int curandSet##NAME(generator *self, TYPE value) { \
    if (!alive(self)) return NOT_INITIALIZED;                  \
    self->FIELD = value;                                       \
    return SUCCESS;                                            \
  }
STATES(STATE)
PH_EXPORT int curandGenerateSeeds(generator *self) { return alive(self) ? SUCCESS : NOT_INITIALIZED; }
PH_EXPORT int curandGetVersion(int *version) {
  if (!version) return OUT_OF_RANGE;
  *version = PH_CUDA_MAJOR >= 13 ? 10400 : 10309;
  return SUCCESS;
}

static int generate(const generator *self, const char *kind, void *out, size_t count, size_t bytes) {
  if (!alive(self)) return NOT_INITIALIZED;
  if (!out) return OUT_OF_RANGE;
  if (!count) return SUCCESS;
  const ph_stream *stream = ph_stream_of(self->stream, false);
  if (!stream) return LAUNCH_FAILURE;
  ph_call call;
  ph_call_begin(&call, "curand", "generate");
  ph_call_text(&call, "kind", kind, true);
  ph_call_number(&call, "n", (int64_t)count, true);
  ph_call_number(&call, "size", (int64_t)bytes, false);
  call.flops = 10.0 * (double)count;
  call.bytes = (double)count * (double)bytes;
  ph_call_launch(&call, stream);
  ph_charge(PH_API_LAUNCH);
  ph_wrote_output(out, call.bytes);
  return SUCCESS;
}
// Name, further arguments, kind, bytes of one number.
// clang-format off
#define GENERATE(X)                                                                                          \
  X(Generate, (generator * self, unsigned *out, size_t n), "bits", 4)                                        \
  X(GenerateLongLong, (generator * self, unsigned long long *out, size_t n), "bits", 8)                      \
  X(GenerateUniform, (generator * self, float *out, size_t n), "uniform", 4)                                 \
  X(GenerateUniformDouble, (generator * self, double *out, size_t n), "uniform", 8)                          \
  X(GenerateNormal, (generator * self, float *out, size_t n, float mean, float deviation), "normal", 4)      \
  X(GenerateNormalDouble, (generator * self, double *out, size_t n, double mean, double deviation),  \
    "normal", 8)                                                                                     \
  X(GenerateLogNormal, (generator * self, float *out, size_t n, float mean, float deviation),        \
    "lognormal", 4)                                                                                  \
  X(GenerateLogNormalDouble, (generator * self, double *out, size_t n, double mean, double deviation), \
    "lognormal", 8)                                                                                  \
  X(GeneratePoisson, (generator * self, unsigned *out, size_t n, double lambda), "poisson", 4)
// clang-format on
#pragma GCC diagnostic ignored "-Wunused-parameter"  // mean, deviation, lambda: they do not change the cost
#define GENERATOR(NAME, ARGUMENTS, KIND, BYTES) \
  PH_EXPORT int curand##NAME ARGUMENTS { return PH_BRACKET(generate(self, KIND, out, n, BYTES)); }
GENERATE(GENERATOR)
