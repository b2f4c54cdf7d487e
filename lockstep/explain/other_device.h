// A measured step on a device that is not here, from published figures: what each instruction does
// (FLOPs, bytes) at the rates of the other device, and as efficiently as it was measured here.
#pragma once

#include <string>

#include "lockstep/explain/measured_step.h"
#include "lockstep/explain/network.h"

namespace lockstep {

struct OtherDevice {
  MeasuredStep step;
  std::string how_sure;  // a sentence
};

// Where the device that was measured is in the table, the rates of both are compared. Otherwise its
// rates are the best that an instruction of the step reached: what was efficient here is taken to
// be as efficient there.
OtherDevice on_device(const MeasuredStep& step, const DevicePeak& device);

}  // namespace lockstep
