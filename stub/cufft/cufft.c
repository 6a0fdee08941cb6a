// cuFFT: plans with real sizes; executing one is one kernel.
#include "rank/library.h"
#include <pthread.h>

enum {
  CUFFT_SUCCESS = 0,
  CUFFT_INVALID_PLAN = 1,
  CUFFT_ALLOC_FAILED = 2,
  CUFFT_INVALID_TYPE = 3,
  CUFFT_INVALID_VALUE = 4,
  CUFFT_EXEC_FAILED = 6,
  CUFFT_SETUP_FAILED = 7,
  CUFFT_INVALID_SIZE = 8,
  CUFFT_NOT_SUPPORTED = 16,
};
enum { CUFFT_C2C = 0x29, CUFFT_R2C = 0x2a, CUFFT_C2R = 0x2c, CUFFT_Z2Z = 0x69, CUFFT_D2Z = 0x6a, CUFFT_Z2D = 0x6c };
enum { MAX_RANK = 3, MAX_PLANS = 65536 };

typedef struct plan {
  bool used, made;
  int rank, in, out, execution;  // cudaDataType_t
  int64_t n[MAX_RANK], batch, in_distance, out_distance;
  void *stream;
  size_t workspace;
  bool allocates;
  void *area;  // own workspace
} plan;

// Handles are small integers, as cuFFT's are: an index into this table plus one.
static plan *plans;
static int plan_room;
static pthread_mutex_t plan_lock = PTHREAD_MUTEX_INITIALIZER;

// Returns a copy; changes go back through put().
static bool get(int handle, plan *out) {
  pthread_mutex_lock(&plan_lock);
  bool found = handle >= 1 && handle <= plan_room && plans[handle - 1].used;
  if (found) *out = plans[handle - 1];
  pthread_mutex_unlock(&plan_lock);
  return found;
}
static void put(int handle, const plan *changed) {
  pthread_mutex_lock(&plan_lock);
  plans[handle - 1] = *changed;
  pthread_mutex_unlock(&plan_lock);
}

PH_EXPORT int cufftCreate(int *handle) {
  if (!handle) return CUFFT_INVALID_VALUE;
  if (ph_devices() < 1) return CUFFT_SETUP_FAILED;
  pthread_mutex_lock(&plan_lock);
  int at = 0;
  while (at < plan_room && plans[at].used) at++;
  if (at == plan_room) {
    int room = plan_room ? 2 * plan_room : 16;
    plan *grown = room <= MAX_PLANS ? realloc(plans, (size_t)room * sizeof *grown) : NULL;
    if (!grown) {
      pthread_mutex_unlock(&plan_lock);
      return CUFFT_ALLOC_FAILED;
    }
    memset(grown + plan_room, 0, (size_t)(room - plan_room) * sizeof *grown);
    plans = grown;
    plan_room = room;
  }
  plans[at] = (plan){.used = true, .allocates = true};
  pthread_mutex_unlock(&plan_lock);
  *handle = at + 1;
  return CUFFT_SUCCESS;
}
PH_EXPORT int cufftDestroy(int handle) {
  plan p;
  if (!get(handle, &p)) return CUFFT_INVALID_PLAN;
  if (p.area) ph_memory_free(p.area);
  put(handle, &(plan){0});
  return CUFFT_SUCCESS;
}
PH_EXPORT int cufftSetStream(int handle, void *stream) {
  plan p;
  if (!get(handle, &p)) return CUFFT_INVALID_PLAN;
  p.stream = stream;
  put(handle, &p);
  return CUFFT_SUCCESS;
}
PH_EXPORT int cufftSetAutoAllocation(int handle, int allocate) {
  plan p;
  if (!get(handle, &p)) return CUFFT_INVALID_PLAN;
  p.allocates = allocate != 0;
  put(handle, &p);
  return CUFFT_SUCCESS;
}
PH_EXPORT int cufftSetWorkArea(int handle, void *area) {
  (void)area;
  plan p;
  return get(handle, &p) ? CUFFT_SUCCESS : CUFFT_INVALID_PLAN;
}
PH_EXPORT int cufftGetSize(int handle, size_t *size) {
  plan p;
  if (!get(handle, &p)) return CUFFT_INVALID_PLAN;
  if (!size) return CUFFT_INVALID_VALUE;
  *size = p.workspace;
  return CUFFT_SUCCESS;
}
PH_EXPORT int cufftGetVersion(int *version) {
  if (!version) return CUFFT_INVALID_VALUE;
  *version = PH_CUDA_MAJOR >= 13 ? 12000 : 11303;
  return CUFFT_SUCCESS;
}

static double points(const plan *p) {
  double count = (double)p->batch;
  for (int i = 0; i < p->rank; i++) count *= (double)p->n[i];
  return count;
}
// Lengths made of small primes that fit in one kernel's shared memory are transformed in place;
// others pass through a complex copy of the data.
static bool in_place(int64_t n) {
  if (n > 4096) return false;
  for (int64_t prime = 2; prime <= 7; prime++)
    while (n > 1 && n % prime == 0) n /= prime;
  return n == 1;
}

static int make_plan(int handle, int rank, const int64_t *n, int in, int out, int execution, int64_t batch,
                     int64_t in_distance, int64_t out_distance, size_t *size) {
  plan p;
  if (!get(handle, &p) || p.made) return CUFFT_INVALID_PLAN;
  if (rank < 1 || rank > MAX_RANK || !n) return CUFFT_INVALID_VALUE;
  const ph_dtype *from = ph_dtype_of(in), *to = ph_dtype_of(out), *type = ph_dtype_of(execution);
  if (!from || !to || !type || (!from->complex_number && !to->complex_number)) return CUFFT_INVALID_TYPE;
  p.rank = rank, p.in = in, p.out = out, p.execution = execution, p.batch = batch;
  p.in_distance = in_distance, p.out_distance = out_distance;
  bool direct = true, compiled = false;  // cuFFT compiles what it has no kernels for
  for (int i = 0; i < rank; i++) {
    if (n[i] < 1) return CUFFT_INVALID_SIZE;
    bool power = (n[i] & (n[i] - 1)) == 0;
    if (type->id == PH_C_16F && !power) return CUFFT_INVALID_SIZE;  // half precision: powers of two only
    p.n[i] = n[i];
    direct = direct && in_place(n[i]);
    compiled = compiled || !power;
  }
  if (batch < 1) return CUFFT_INVALID_SIZE;
  p.workspace = direct ? 0 : (size_t)(points(&p) * ph_dtype_bytes(type));
  if (p.allocates && p.workspace && !(p.area = ph_memory_alloc(ph_current_device(), p.workspace)))
    return CUFFT_ALLOC_FAILED;
  p.made = true;
  put(handle, &p);
  if (size) *size = p.workspace;
  ph_charge(compiled ? PH_API_FFT_PLAN : PH_API_OTHER);
  return CUFFT_SUCCESS;
}
PH_EXPORT int cufftXtMakePlanMany(int handle, int rank, long long *n, long long *inembed, long long istride,
                                  long long idist, int in, long long *onembed, long long ostride, long long odist,
                                  int out, long long batch, size_t *size, int execution) {
  (void)inembed, (void)istride, (void)onembed, (void)ostride;
  int64_t wide[MAX_RANK] = {0};
  for (int i = 0; n && i < rank && i < MAX_RANK; i++) wide[i] = n[i];
  return PH_BRACKET(make_plan(handle, rank, n ? wide : NULL, in, out, execution, batch, idist, odist, size));
}

// The classic transform types: input, output and execution type.
static bool types_of(int transform, int *in, int *out, int *execution) {
  static const struct {
    int transform, in, out, execution;
  } kinds[] = {
      {CUFFT_C2C, PH_C_32F, PH_C_32F, PH_C_32F}, {CUFFT_R2C, PH_R_32F, PH_C_32F, PH_C_32F},
      {CUFFT_C2R, PH_C_32F, PH_R_32F, PH_C_32F}, {CUFFT_Z2Z, PH_C_64F, PH_C_64F, PH_C_64F},
      {CUFFT_D2Z, PH_R_64F, PH_C_64F, PH_C_64F}, {CUFFT_Z2D, PH_C_64F, PH_R_64F, PH_C_64F},
  };
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    if (kinds[i].transform != transform) continue;
    *in = kinds[i].in, *out = kinds[i].out, *execution = kinds[i].execution;
    return true;
  }
  return false;
}
static int make_classic(int handle, int rank, const int64_t *n, int transform, int64_t batch, int64_t idist,
                        int64_t odist, size_t *size) {
  int in, out, execution;
  if (!types_of(transform, &in, &out, &execution)) return CUFFT_INVALID_TYPE;
  return make_plan(handle, rank, n, in, out, execution, batch, idist, odist, size);
}
PH_EXPORT int cufftMakePlanMany(int handle, int rank, int *n, int *inembed, int istride, int idist, int *onembed,
                                int ostride, int odist, int transform, int batch, size_t *size) {
  (void)inembed, (void)istride, (void)onembed, (void)ostride;
  int64_t wide[MAX_RANK] = {0};
  for (int i = 0; n && i < rank && i < MAX_RANK; i++) wide[i] = n[i];
  return PH_BRACKET(make_classic(handle, rank, n ? wide : NULL, transform, batch, idist, odist, size));
}
// cufftPlan* create and make in one call; a plan that cannot be made is not kept.
static int create_and_make(int *handle, int rank, const int64_t *n, int transform, int64_t batch, int64_t idist,
                           int64_t odist) {
  int status = cufftCreate(handle);
  if (status != CUFFT_SUCCESS) return status;
  status = make_classic(*handle, rank, n, transform, batch, idist, odist, NULL);
  if (status != CUFFT_SUCCESS) cufftDestroy(*handle);
  return status;
}
PH_EXPORT int cufftPlan1d(int *handle, int n, int transform, int batch) {
  return PH_BRACKET(create_and_make(handle, 1, (int64_t[]){n}, transform, batch, 0, 0));
}
PH_EXPORT int cufftPlan2d(int *handle, int nx, int ny, int transform) {
  return PH_BRACKET(create_and_make(handle, 2, (int64_t[]){nx, ny}, transform, 1, 0, 0));
}
PH_EXPORT int cufftPlan3d(int *handle, int nx, int ny, int nz, int transform) {
  return PH_BRACKET(create_and_make(handle, 3, (int64_t[]){nx, ny, nz}, transform, 1, 0, 0));
}
PH_EXPORT int cufftPlanMany(int *handle, int rank, int *n, int *inembed, int istride, int idist, int *onembed,
                            int ostride, int odist, int transform, int batch) {
  (void)inembed, (void)istride, (void)onembed, (void)ostride;
  int64_t wide[MAX_RANK] = {0};
  for (int i = 0; n && i < rank && i < MAX_RANK; i++) wide[i] = n[i];
  return PH_BRACKET(create_and_make(handle, rank, n ? wide : NULL, transform, batch, idist, odist));
}

static double log2_of(double value) {
  double result = 0;
  for (; value > 1; value /= 2) result++;
  return result;
}
static int execute(int handle, void *input, void *output) {
  plan p;
  if (!get(handle, &p) || !p.made) return CUFFT_INVALID_PLAN;
  if (!input || !output) return CUFFT_INVALID_VALUE;
  const ph_stream *stream = ph_stream_of(p.stream, false);
  if (!stream) return CUFFT_EXEC_FAILED;
  const ph_dtype *in = ph_dtype_of(p.in), *out = ph_dtype_of(p.out);
  ph_call call;
  ph_call_begin(&call, "cufft", "fft");
  ph_call_text(&call, "a", in->name, true);
  ph_call_text(&call, "c", out->name, true);
  ph_call_list(&call, "n", p.n, p.rank, true);
  ph_call_number(&call, "batch", p.batch, p.batch > 1);
  double total = points(&p), half = in->complex_number && out->complex_number ? 1 : 0.5;
  // A complex transform of n points takes 5 n log2 n operations, a real one half.
  call.flops = 5 * total * log2_of(total / (double)p.batch) * half;
  // Hermitian halves are stored once; each dimension that does not fit in shared memory is a pass.
  double stored = total * (ph_dtype_bytes(in) * (in->complex_number && !out->complex_number ? 0.5 : 1) +
                           ph_dtype_bytes(out) * (out->complex_number && !in->complex_number ? 0.5 : 1));
  call.bytes = stored * p.rank;
  ph_call_launch(&call, stream);
  ph_charge(PH_API_LAUNCH);
  ph_wrote_output(output, p.out_distance > 0 ? (double)p.out_distance * (double)p.batch * ph_dtype_bytes(out) : 0);
  return CUFFT_SUCCESS;
}
PH_EXPORT int cufftXtExec(int handle, void *input, void *output, int direction) {
  (void)direction;
  return PH_BRACKET(execute(handle, input, output));
}
#define COMPLEX_EXECUTE(X) X(C2C) X(Z2Z)
#define REAL_EXECUTE(X) X(R2C) X(C2R) X(D2Z) X(Z2D)
#define EXECUTE_COMPLEX(KIND)                                                           \
  PH_EXPORT int cufftExec##KIND(int handle, void *input, void *output, int direction) { \
    return (void)direction, PH_BRACKET(execute(handle, input, output));                 \
  }
#define EXECUTE_REAL(KIND)                                               \
  PH_EXPORT int cufftExec##KIND(int handle, void *input, void *output) { \
    return PH_BRACKET(execute(handle, input, output));                   \
  }
COMPLEX_EXECUTE(EXECUTE_COMPLEX)
REAL_EXECUTE(EXECUTE_REAL)
