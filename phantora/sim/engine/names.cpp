#include "names.h"

#include <algorithm>

namespace phe {

CallNames::CallNames(Texts &texts) : texts_(texts), connection_(texts.name("ncclTransportP2pSetup")) {
  static const struct {
    ph_kind kind;
    const char *name;
  } calls[] = {
      {PH_STREAM_SYNC, "cudaStreamSynchronize"},
      {PH_DEVICE_SYNC, "cudaDeviceSynchronize"},
      {PH_EVENT_SYNC, "cudaEventSynchronize"},
      {PH_ROOM, "cudaLaunchKernel"},
      {PH_MEMCPY, "cudaMemcpyAsync"},
      {PH_MEMSET, "cudaMemset"},
      {PH_EVENT_RECORD, "cudaEventRecord"},
      {PH_STREAM_WAIT, "cudaStreamWaitEvent"},
      {PH_EXCHANGE, "ncclCommInit"},
      {PH_HOST_FUNC, "cudaLaunchHostFunc"},
  };
  std::fill(std::begin(calls_), std::end(calls_), -1);
  for (const auto &call : calls) calls_[call.kind] = texts.name(call.name);
}

int32_t CallNames::copy(uint32_t kind) {
  static const char *const copies[PH_COPY_COUNT_PH_COPY] = {"Memcpy HtoD (Pinned -> Device)",
                                                            "Memcpy HtoD (Pageable -> Device)",
                                                            "Memcpy DtoH (Device -> Pinned)",
                                                            "Memcpy DtoH (Device -> Pageable)",
                                                            "Memcpy DtoD (Device -> Device)",
                                                            "Memcpy PtoP (Device -> Device)",
                                                            "Memcpy HtoH"};
  return texts_.name(copies[std::min<uint32_t>(kind, PH_COPY_H2H)]);
}

}  // namespace phe
