// One kernel for a call of levels 1 to 3 or a batched factorisation.
#include "cublas/internal.h"

int run(const work *w) {
  CHECK_HANDLE(w->handle);
  if (w->invalid || w->m < -1 || w->n < -1 || w->k < -1 || w->batch < 0) return CUBLAS_STATUS_INVALID_VALUE;
  const ph_dtype *type = ph_dtype_of(w->type);
  if (!type) return CUBLAS_STATUS_NOT_SUPPORTED;
  const ph_stream *stream = ph_stream_of(w->handle->stream, false);
  if (!stream) return CUBLAS_STATUS_EXECUTION_FAILED;
  bool on_host = w->result && w->handle->pointer_mode == CUBLAS_POINTER_MODE_HOST;
  bool empty = w->m == 0 || w->n == 0;
  if (!empty) {
    int64_t batch = w->batch ? w->batch : 1;
    ph_call call;
    ph_call_begin(&call, "cublas", w->name);
    ph_call_text(&call, "a", type->name, true);
    if (w->trans) ph_call_text(&call, "trans", w->trans, true);
    if (w->m >= 0) ph_call_number(&call, "m", w->m, true);
    if (w->n >= 0) ph_call_number(&call, "n", w->n, true);
    if (w->k >= 0) ph_call_number(&call, "k", w->k, true);
    if (w->nrhs) ph_call_number(&call, "nrhs", w->nrhs, true);
    ph_call_number(&call, "batch", batch, batch > 1);
    call.flops = (type->complex_number ? 8.0 : 2.0) * w->multiply_adds * (double)batch;
    call.bytes = w->elements * ph_dtype_bytes(type) * (double)batch;
    ph_call_launch(&call, stream);
    ph_charge(PH_API_GEMM);
    ph_wrote_output(w->out, w->out_elements * ph_dtype_bytes(type));
  }
  if (on_host) {
    ph_wait_stream(stream);
    memset(w->result, 0, w->result_bytes);
  } else if (w->result) {
    ph_wrote_output(w->result, (double)w->result_bytes);
  }
  return CUBLAS_STATUS_SUCCESS;
}
