// Speed-ups that others have published, predicted from what they published of one scale and of
// their links.
#pragma once

#include "lockstep/explain/measured_step.h"

namespace lockstep {

// `resnet50`: the order and sizes of the gradients of a ResNet-50; its times are not used as such.
void published(const MeasuredStep& resnet50);

}  // namespace lockstep
