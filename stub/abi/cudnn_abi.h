// The part of cuDNN 9's binary interface that stub/cudnn implements: values as in the public
// cudnn_graph.h, cudnn_ops.h, cudnn_cnn.h and cudnn_adv.h, declared here so that no NVIDIA header
// is needed.
#pragma once
#include "rank/library.h"

#ifndef PH_CUDA_MAJOR
#error "PH_CUDA_MAJOR must be defined: the CUDA major version of the libraries to stand in for"
#endif
// major * 10000 + minor * 100 + patch. torch compares it with the version it was built against, so
// the build passes the version that the installed torch asks for.
#ifndef PH_CUDNN_VERSION
#define PH_CUDNN_VERSION (PH_CUDA_MAJOR >= 13 ? 91900 : 91002)
#endif

// clang-format off
#define CUDNN_STATUSES(X)                                                                                \
  X(SUCCESS, 0) X(NOT_INITIALIZED, 1001) X(SUBLIBRARY_VERSION_MISMATCH, 1002)                            \
  X(SERIALIZATION_VERSION_MISMATCH, 1003) X(DEPRECATED, 1004) X(LICENSE_ERROR, 1005)                     \
  X(RUNTIME_IN_PROGRESS, 1006) X(RUNTIME_FP_OVERFLOW, 1007) X(SUBLIBRARY_LOADING_FAILED, 1008)           \
  X(BAD_PARAM, 2000) X(INVALID_VALUE, 2001) X(BAD_PARAM_NULL_POINTER, 2002)                              \
  X(BAD_PARAM_MISALIGNED_POINTER, 2003) X(BAD_PARAM_NOT_FINALIZED, 2004) X(BAD_PARAM_OUT_OF_BOUND, 2005) \
  X(BAD_PARAM_SIZE_INSUFFICIENT, 2006) X(BAD_PARAM_STREAM_MISMATCH, 2007)                                \
  X(BAD_PARAM_SHAPE_MISMATCH, 2008) X(BAD_PARAM_DUPLICATED_ENTRIES, 2009)                                \
  X(BAD_PARAM_ATTRIBUTE_TYPE, 2010) X(BAD_PARAM_CUDA_GRAPH_MISMATCH, 2011)                               \
  X(BAD_PARAM_DESCRIPTOR_TYPE, 2012) X(NOT_SUPPORTED, 3000) X(NOT_SUPPORTED_GRAPH_PATTERN, 3001)         \
  X(NOT_SUPPORTED_SHAPE, 3002) X(NOT_SUPPORTED_DATA_TYPE, 3003) X(NOT_SUPPORTED_LAYOUT, 3004)            \
  X(NOT_SUPPORTED_ARCH_MISMATCH, 3007) X(INTERNAL_ERROR, 4000)                                           \
  X(INTERNAL_ERROR_HOST_ALLOCATION_FAILED, 4003)                                                         \
  X(INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, 4004) X(EXECUTION_FAILED, 5000)
// clang-format on
#define CUDNN_STATUS(NAME, VALUE) CUDNN_STATUS_##NAME = VALUE,
enum { CUDNN_STATUSES(CUDNN_STATUS) };
#undef CUDNN_STATUS

// cudnnDataType_t, as the common type table names it; -1 where a type packs several numbers.
static inline const ph_dtype *cudnn_dtype(int64_t type) {
  static const int ids[] = {PH_R_32F,     PH_R_64F,     PH_R_16F, PH_R_8I,       PH_R_32I,     -1,
                            PH_R_8U,      -1,           -1,       PH_R_16BF,     PH_R_64I,     PH_R_8I,
                            PH_R_8F_E4M3, PH_R_8F_E5M2, PH_R_32F, PH_R_8F_UE8M0, PH_R_4F_E2M1, -1,
                            -1,           PH_R_32I,     PH_C_32F, PH_C_64F};
  if (type < 0 || type >= (int64_t)(sizeof ids / sizeof *ids) || ids[type] < 0) return NULL;
  return ph_dtype_of(ids[type]);
}
enum { CUDNN_DATA_FLOAT = 0 };
enum { CUDNN_DIM_MAX = 8 };

// cudnnBackendAttributeType_t: number, bytes of one element.
// clang-format off
#define CUDNN_ATTRIBUTE_TYPES(X)                                                                        \
  X(HANDLE, 0, 8) X(DATA_TYPE, 1, 4) X(BOOLEAN, 2, 1) X(INT64, 3, 8) X(FLOAT, 4, 4) X(DOUBLE, 5, 8)     \
  X(VOID_PTR, 6, 8) X(CONVOLUTION_MODE, 7, 4) X(HEUR_MODE, 8, 4) X(KNOB_TYPE, 9, 4)                     \
  X(NAN_PROPOGATION, 10, 4) X(NUMERICAL_NOTE, 11, 4) X(LAYOUT_TYPE, 12, 4) X(ATTRIB_NAME, 13, 4)        \
  X(POINTWISE_MODE, 14, 4) X(BACKEND_DESCRIPTOR, 15, 8) X(GENSTATS_MODE, 16, 4)                         \
  X(BN_FINALIZE_STATS_MODE, 17, 4) X(REDUCTION_OPERATOR_TYPE, 18, 4) X(BEHAVIOR_NOTE, 19, 4)            \
  X(TENSOR_REORDERING_MODE, 20, 4) X(RESAMPLE_MODE, 21, 4) X(PADDING_MODE, 22, 4) X(INT32, 23, 4)       \
  X(CHAR, 24, 1) X(SIGNAL_MODE, 25, 4) X(FRACTION, 26, 16) X(NORM_MODE, 27, 4) X(NORM_FWD_PHASE, 28, 4) \
  X(RNG_DISTRIBUTION, 29, 4) X(MOE_GROUPED_MATMUL_MODE, 30, 4) X(RESHAPE_MODE, 31, 4)                   \
  X(OPERATIONGRAPH_MODE, 32, 4)
// clang-format on
#define CUDNN_TYPE(NAME, NUMBER, SIZE) CUDNN_TYPE_##NAME = NUMBER,
enum { CUDNN_ATTRIBUTE_TYPES(CUDNN_TYPE) };
#undef CUDNN_TYPE

// cudnnBackendDescriptorType_t: number, name, the range of its attributes' numbers, and up to four
// attributes without which it cannot be finalised.
// clang-format off
#define CUDNN_DESCRIPTORS(X)                                                                              \
  X(0, POINTWISE, 0, 99, 0, 1, -1, -1) X(1, CONVOLUTION, 100, 199, 100, 103, 105, 106)                    \
  X(2, ENGINE, 1300, 1399, 1300, 1301, -1, -1) X(3, ENGINECFG, 300, 399, 300, -1, -1, -1)                \
  X(4, ENGINEHEUR, 200, 299, 200, 201, -1, -1) X(5, EXECUTION_PLAN, 400, 499, 401, -1, -1, -1)            \
  X(6, INTERMEDIATE_INFO, 500, 599, -1, -1, -1, -1) X(7, KNOB_CHOICE, 600, 699, 600, 601, -1, -1)        \
  X(8, KNOB_INFO, 1200, 1299, -1, -1, -1, -1) X(9, LAYOUT_INFO, 1100, 1199, -1, -1, -1, -1)               \
  X(10, OPERATION_CONVOLUTION_FORWARD, 700, 705, 702, 703, 704, 705)                                     \
  X(11, OPERATION_CONVOLUTION_BACKWARD_FILTER, 712, 717, 714, 715, 716, 717)                              \
  X(12, OPERATION_CONVOLUTION_BACKWARD_DATA, 706, 711, 708, 709, 710, 711)                                \
  X(13, OPERATION_POINTWISE, 750, 769, 750, -1, -1, -1)                                                   \
  X(14, OPERATION_GEN_STATS, 770, 779, 772, -1, -1, -1) X(15, OPERATIONGRAPH, 800, 899, 801, -1, -1, -1)  \
  X(16, VARIANT_PACK, 1000, 1099, 1000, 1001, -1, -1) X(17, TENSOR, 900, 999, 901, 902, 903, 906)         \
  X(18, MATMUL, 1500, 1519, 1500, -1, -1, -1) X(19, OPERATION_MATMUL, 1520, 1599, 1520, 1521, 1522, 1523) \
  X(20, OPERATION_BN_FINALIZE_STATISTICS, 780, 799, 780, -1, -1, -1)                                      \
  X(21, REDUCTION, 1600, 1609, 1600, 1601, -1, -1)                                                        \
  X(22, OPERATION_REDUCTION, 1610, 1619, 1610, 1611, 1612, -1)                                           \
  X(23, OPERATION_BN_BWD_WEIGHTS, 1620, 1639, 1624, 1625, -1, -1)                                         \
  X(24, RESAMPLE, 1700, 1709, 1700, -1, -1, -1)                                                           \
  X(25, OPERATION_RESAMPLE_FWD, 1710, 1719, 1710, 1711, 1716, -1)                                         \
  X(26, OPERATION_RESAMPLE_BWD, 1720, 1739, 1720, 1721, 1725, -1)                                         \
  X(27, OPERATION_CONCAT, 1800, 1899, 1801, 1803, -1, -1)                                                 \
  X(28, OPERATION_SIGNAL, 1900, 1949, 1900, -1, -1, -1)                                                   \
  X(29, OPERATION_NORM_FORWARD, 2000, 2099, 2000, 2001, 2002, 2013)                                       \
  X(30, OPERATION_NORM_BACKWARD, 2100, 2199, 2100, 2101, 2104, 2109)                                      \
  X(31, OPERATION_RESHAPE, 2200, 2249, 2200, 2201, -1, -1) X(32, RNG, 2300, 2309, 2300, -1, -1, -1)      \
  X(33, OPERATION_RNG, 2310, 2399, 2310, 2312, -1, -1) X(34, KERNEL_CACHE, 2400, 2499, -1, -1, -1, -1)   \
  X(35, OPERATION_PAGED_CACHE_LOAD, 1950, 1999, 1950, 1951, -1, -1)                                       \
  X(36, OPERATION_BLOCK_SCALE_QUANTIZE, 2500, 2599, 2500, 2501, -1, -1)                                   \
  X(37, OPERATION_BLOCK_SCALE_DEQUANTIZE, 2600, 2699, 2600, 2602, -1, -1)                                 \
  X(38, DEVICEPROP, 2700, 2799, -1, -1, -1, -1)                                                           \
  X(39, OPERATION_EXPAND_BAND_MATRIX, 2250, 2269, 2250, 2251, -1, -1)                                     \
  X(40, OPERATION_CONTRACT_BAND_MATRIX, 2270, 2299, 2270, 2271, -1, -1)                                   \
  X(41, OPERATION_SDPA_FWD, 2800, 2850, 2800, 2801, 2802, 2803)                                           \
  X(42, OPERATION_MOE_GROUPED_MATMUL, 2900, 2949, 2902, 2903, 2905, -1)                                   \
  X(43, OPERATION_SDPA_BWD, 2851, 2899, 2851, 2852, 2853, 2862)                                           \
  X(44, OPERATION_DIAGONAL_BAND_MASK, 3000, 3099, 3000, 3006, -1, -1)                                     \
  X(45, OPERATION_SOFTMAX, 3100, 3199, 3100, -1, -1, -1)                                                  \
  X(46, OPERATION_TRANSPOSE, 3200, 3299, 3200, 3201, -1, -1)                                              \
  X(47, OPERATION_SLICE, 3300, 3399, 3300, 3301, -1, -1)                                                  \
  X(48, OPERATION_MOE_GROUPED_MATMUL_BWD, 2950, 2999, 2952, 2953, -1, -1)                                 \
  X(49, OPERATION_ROPE_FWD, 3400, 3409, 3400, 3401, -1, -1)                                               \
  X(50, OPERATION_ROPE_BWD, 3410, 3419, 3410, 3411, -1, -1)
// clang-format on
#define CUDNN_DESCRIPTOR(NUMBER, NAME, ...) CUDNN_BACKEND_##NAME = NUMBER,
enum { CUDNN_DESCRIPTORS(CUDNN_DESCRIPTOR) };
#undef CUDNN_DESCRIPTOR

enum {
  CUDNN_ATTR_POINTWISE_MODE = 0,
  CUDNN_ATTR_CONVOLUTION_COMP_TYPE = 100,
  CUDNN_ATTR_CONVOLUTION_DILATIONS = 102,
  CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES = 103,
  CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS = 105,
  CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH = 201,
  CUDNN_ATTR_ENGINEHEUR_RESULTS = 202,
  CUDNN_ATTR_ENGINECFG_ENGINE = 300,
  CUDNN_ATTR_ENGINECFG_INTERMEDIATE_INFO = 301,
  CUDNN_ATTR_ENGINECFG_KNOB_CHOICES = 302,
  CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE = 303,
  CUDNN_ATTR_ENGINECFG_SHARED_MEMORY_USED = 304,
  CUDNN_ATTR_EXECUTION_PLAN_HANDLE = 400,
  CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG = 401,
  CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE = 402,
  CUDNN_ATTR_EXECUTION_PLAN_COMPUTED_INTERMEDIATE_UIDS = 403,
  CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR = 750,
  CUDNN_ATTR_OPERATIONGRAPH_OPS = 801,
  CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT = 802,
  CUDNN_ATTR_TENSOR_DATA_TYPE = 901,
  CUDNN_ATTR_TENSOR_DIMENSIONS = 902,
  CUDNN_ATTR_TENSOR_STRIDES = 903,
  CUDNN_ATTR_TENSOR_UNIQUE_ID = 906,
  CUDNN_ATTR_TENSOR_IS_VIRTUAL = 907,
  CUDNN_ATTR_TENSOR_IS_BY_VALUE = 908,
  CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS = 1000,
  CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS = 1001,
  CUDNN_ATTR_ENGINE_OPERATION_GRAPH = 1300,
  CUDNN_ATTR_ENGINE_GLOBAL_INDEX = 1301,
  CUDNN_ATTR_ENGINE_KNOB_INFO = 1302,
  CUDNN_ATTR_ENGINE_NUMERICAL_NOTE = 1303,
  CUDNN_ATTR_ENGINE_LAYOUT_INFO = 1304,
  CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE = 1305,
  CUDNN_ATTR_OPERATION_MATMUL_ADESC = 1520,
  CUDNN_ATTR_OPERATION_MATMUL_BDESC = 1521,
  CUDNN_ATTR_OPERATION_MATMUL_CDESC = 1522,
  CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC = 2800,
  CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC = 2801,
  CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC = 2802,
  CUDNN_ATTR_OPERATION_SDPA_BWD_QDESC = 2851,
  CUDNN_ATTR_OPERATION_SDPA_BWD_KDESC = 2852,
  CUDNN_ATTR_OPERATION_SDPA_BWD_VDESC = 2853,
  CUDNN_ATTR_KERNEL_CACHE_IS_ENGINECFG_KERNEL_CACHED = 2401,
};
enum { CUDNN_NUMERICAL_NOTE_TENSOR_CORE = 0 };
enum {
  CUDNN_POINTWISE_CMP_GT = 302,
  CUDNN_POINTWISE_CMP_GE = 303,
  CUDNN_POINTWISE_CMP_LE = 305,
  CUDNN_POINTWISE_GEN_INDEX = 501
};

// Attributes through which an operation writes a tensor.
#define CUDNN_OUTPUT_ATTRIBUTES                                                                                    \
  705, 710, 715, 753, 756, 773, 774, 788, 789, 790, 791, 792, 793, 1522, 1611, 1626, 1627, 1628, 1629, 1630, 1711, \
      1712, 1720, 1803, 1904, 1951, 2003, 2004, 2011, 2012, 2013, 2107, 2108, 2109, 2201, 2251, 2271, 2310, 2501,  \
      2502, 2602, 2803, 2804, 2817, 2859, 2860, 2861, 2864, 2905, 2953, 3006, 3101, 3102, 3103, 3104, 3201, 3301,  \
      3401, 3411

// Legacy interface.
enum { CUDNN_TENSOR_NCHW = 0, CUDNN_TENSOR_NHWC = 1, CUDNN_TENSOR_NCHW_VECT_C = 2 };
enum { CUDNN_TENSOR_OP_MATH = 1, CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION = 2, CUDNN_FMA_MATH = 3 };
enum { CUDNN_RNN_RELU = 0, CUDNN_RNN_TANH = 1, CUDNN_LSTM = 2, CUDNN_GRU = 3 };
enum { CUDNN_RNN_NO_BIAS = 0, CUDNN_RNN_DOUBLE_BIAS = 2 };
enum { CUDNN_BIDIRECTIONAL = 1, CUDNN_SKIP_INPUT = 1, CUDNN_FWD_MODE_TRAINING = 1 };
enum { CUDNN_BATCHNORM_SPATIAL_PERSISTENT = 2, CUDNN_DETERMINISTIC = 1 };
