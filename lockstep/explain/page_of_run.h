// The page about a run, and the trace of its example steps, from what it recorded.
#pragma once

#include <string>

#include "lockstep/explain/page.h"
#include "lockstep/explain/run_profile.h"
#include "lockstep/explain/scaling_curve.h"

namespace lockstep {

// Everything that the profile knows. `curve` may be empty.
PageContents page_of(const RunProfile& profile, const Explanation& explanation,
                     const ScalingCurve& curve);

// The latest typical step with its critical path; nothing if no step was recorded.
std::optional<page::Timeline> timeline_of(const RunProfile& profile);

// The example steps, one after another, as a trace that Perfetto and Chrome's about:tracing open:
// a process for each worker, a line for each of its tracks, all on the chief's clock. What is
// within the error of a worker's clock is said in the name of the process and with each span. What
// is on the critical path of a step is marked.
std::string trace_of(const RunProfile& profile);

}  // namespace lockstep
