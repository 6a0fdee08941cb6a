// Reductions made by the user: a sum whose terms are multiplied by a factor before.
#include "nccl/internal.h"

static double half_value(uint16_t bits) {
  int exponent = bits >> 10 & 31;
  double mantissa = bits & 1023, sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 31) return mantissa != 0 ? (double)__builtin_nanf("") : sign * (double)__builtin_inff();
  return sign * (exponent ? __builtin_ldexp(1 + mantissa / 1024, exponent - 15) : __builtin_ldexp(mantissa, -24));
}

static double fp8_value(uint8_t bits, int mantissa_bits) {
  const int exponent_bits = 7 - mantissa_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits & 0x80 ? -1 : 1, scale = 1 << mantissa_bits;
  if (mantissa_bits == 3 && (bits & 0x7f) == 0x7f) return (double)__builtin_nanf("");
  if (mantissa_bits == 2 && exponent == 31)
    return mantissa ? (double)__builtin_nanf("") : sign * (double)__builtin_inff();
  return sign * (exponent ? __builtin_ldexp(1 + mantissa / scale, exponent - bias)
                          : __builtin_ldexp(mantissa / scale, 1 - bias));
}

double scalar_value(const void *address, ncclDataType_t dtype) {
  union {
    int8_t i8;
    uint8_t u8;
    int32_t i32;
    uint32_t u32;
    int64_t i64;
    uint64_t u64;
    uint16_t u16;
    float f32;
    double f64;
  } v;
  memcpy(&v, address, dtype_bytes[dtype]);
  switch (dtype) {
    case ncclInt8:
      return v.i8;
    case ncclUint8:
      return v.u8;
    case ncclInt32:
      return v.i32;
    case ncclUint32:
      return v.u32;
    case ncclInt64:
      return (double)v.i64;
    case ncclUint64:
      return (double)v.u64;
    case ncclFloat16:
      return half_value(v.u16);
    case ncclFloat32:
      return (double)v.f32;
    case ncclFloat64:
      return v.f64;
    case ncclBfloat16:
      v.u32 = (uint32_t)v.u16 << 16;
      return (double)v.f32;
    case ncclFloat8e4m3:
      return fp8_value(v.u8, 3);
    case ncclFloat8e5m2:
      return fp8_value(v.u8, 2);
    case ncclNumTypes:
      break;
  }
  return 0;
}

NCCL_API(ncclResult_t, ncclRedOpCreatePreMulSum, ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
         ncclScalarResidence_t residence, ncclComm_t comm)
{
  ph_enter();
  ncclResult_t result = check_comm(comm, "ncclRedOpCreatePreMulSum");
  if (result == ncclSuccess) result = check_pointer(op, "ncclRedOpCreatePreMulSum", "op");
  if (result == ncclSuccess) result = check_pointer(scalar, "ncclRedOpCreatePreMulSum", "scalar");
  if (result == ncclSuccess && (unsigned)datatype >= ncclNumTypes)
    result = fail(ncclInvalidArgument, "ncclRedOpCreatePreMulSum : invalid type %d", (int)datatype);
  if (result == ncclSuccess && residence != ncclScalarDevice && residence != ncclScalarHostImmediate)
    result = fail(ncclInvalidArgument, "ncclRedOpCreatePreMulSum : invalid residence %d", (int)residence);
  if (result != ncclSuccess) return leave(result);
  int index = 0;
  while (index < comm->op_count && comm->ops[index].alive) index++;
  if (index == comm->op_count) {
    user_op *larger = realloc(comm->ops, (size_t)(index + 1) * sizeof *larger);
    if (!larger) return leave(fail(ncclSystemError, "out of host memory"));
    comm->ops = larger;
    comm->op_count++;
  }
  const bool on_device = residence == ncclScalarDevice;
  comm->ops[index] = (user_op){.alive = true,
                               .on_device = on_device,
                               .dtype = datatype,
                               .address = scalar,
                               .scalar = on_device ? 0 : scalar_value(scalar, datatype)};
  *op = (ncclRedOp_t)(ncclNumOps + index);
  return leave(ncclSuccess);
}

NCCL_API(ncclResult_t, ncclRedOpDestroy, ncclRedOp_t op, ncclComm_t comm)
{
  ph_enter();
  ncclResult_t result = check_comm(comm, "ncclRedOpDestroy");
  const int index = (int)op - ncclNumOps;
  if (result == ncclSuccess && (int)op >= 0 && op < ncclNumOps)
    result = fail(ncclInvalidArgument, "ncclRedOpDestroy : operator is a NCCL builtin.");
  else if (result == ncclSuccess && (index < 0 || index >= comm->op_count || !comm->ops[index].alive))
    result = fail(ncclInvalidArgument, "ncclRedOpDestroy : operator unknown to this communicator.");
  if (result == ncclSuccess) comm->ops[index].alive = false;
  return leave(result);
}

ncclResult_t check_reduction(operation *op) {
  const int index = op->redop - ncclNumOps;
  if (op->redop < 0) return fail(ncclInvalidArgument, "%s : invalid reduction operation %d", op->name, op->redop);
  if (index < 0) return ncclSuccess;
  if (index >= op->comm->op_count || !op->comm->ops[index].alive)
    return fail(ncclInvalidArgument, "%s : reduction operation %d unknown to this communicator", op->name, op->redop);
  const user_op *made = &op->comm->ops[index];
  if (made->dtype != op->dtype)
    return fail(ncclInvalidArgument, "%s : reduction operation %d was made for type %d, not %d", op->name, op->redop,
                (int)made->dtype, (int)op->dtype);
  op->redop = PREMULSUM;
  op->scalar = made->scalar;
  op->scalar_address = made->on_device ? made->address : NULL;
  return ncclSuccess;
}
