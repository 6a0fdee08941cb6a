// Autograd's nodes, which give operators their place in the backward pass, and user annotations.
#pragma once
#include <memory>

#include "tracer/frames.h"

namespace tracer {

std::unique_ptr<at::ObserverContext> node_start(const at::RecordFunction &fn);
void node_end(const at::RecordFunction &fn, at::ObserverContext *);
std::unique_ptr<at::ObserverContext> annotation_start(const at::RecordFunction &fn);
void annotation_end(const at::RecordFunction &fn, at::ObserverContext *context);

}  // namespace tracer
