// cublasLt: descriptors with real storage, one heuristic answer, and matmul as one kernel on the
// given stream. The opaque descriptors have the sizes of the public header because callers may
// hold them by value (the `_internal` init forms).
#include "abi/cublas_abi.h"

#define SPECIFY_SIZE(type, words) _Static_assert(sizeof(type) <= (words) * 8, #type)

// Attributes: number, field, type, default. One list per descriptor makes the storage, the table
// of offsets and sizes, and the defaults.
#define MATMUL_ATTRIBUTES(X)                                                                 \
  X(0, compute, int32_t, CUBLAS_COMPUTE_32F) X(1, scale_type, int32_t, PH_R_32F)             \
  X(2, pointer_mode, int32_t, 0) X(3, trans_a, int32_t, CUBLAS_OP_N) X(4, trans_b, int32_t, CUBLAS_OP_N) \
  X(5, trans_c, int32_t, CUBLAS_OP_N) X(6, fill_mode, int32_t, CUBLAS_FILL_MODE_FULL)        \
  X(7, epilogue, uint32_t, EPILOGUE_DEFAULT) X(8, bias, void *, NULL) X(10, bias_batch_stride, int64_t, 0) \
  X(11, aux, void *, NULL) X(12, aux_ld, int64_t, 0) X(13, aux_batch_stride, int64_t, 0)     \
  X(14, alpha_batch_stride, int64_t, 0) X(15, sm_count_target, int32_t, 0)                   \
  X(17, a_scale, void *, NULL) X(18, b_scale, void *, NULL) X(19, c_scale, void *, NULL) X(20, d_scale, void *, NULL) \
  X(21, amax_d, void *, NULL) X(22, aux_type, int32_t, -1) X(23, aux_scale, void *, NULL) X(24, aux_amax, void *, NULL) \
  X(25, fast_accumulation, int8_t, 0) X(26, bias_type, int32_t, -1)                          \
  X(27, sync_chunks_rows, int32_t, 0) X(28, sync_chunks_columns, int32_t, 0)                 \
  X(31, a_scale_mode, int8_t[4], 0) X(32, b_scale_mode, int8_t[4], 0)

// cublasLtEpilogue_t: bits that combine.
enum {
  EPILOGUE_DEFAULT = 1, EPILOGUE_RELU = 2, EPILOGUE_BIAS = 4, EPILOGUE_DRELU = 8, EPILOGUE_BGRAD = 16, EPILOGUE_GELU = 32,
  EPILOGUE_DGELU = 64, EPILOGUE_AUX = 128, EPILOGUE_BGRADA = 256, EPILOGUE_BGRADB = 512,
};
