// Counts the large tensors on the CPU: the host's memory of a rank.
#pragma once

namespace tracer {

void watch_host_tensors();  // once, after `import torch`

}  // namespace tracer
