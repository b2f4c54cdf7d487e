// Any bytes read as the profile of a run give one that can be explained, drawn and written again,
// or a DataError.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/explain/attribute.h"
#include "lockstep/explain/explanation_text.h"
#include "lockstep/explain/page_of_run.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  try {
    const RunProfile profile =
        run_profile_from_json({reinterpret_cast<const char*>(data), size}, "profile");
    const Explanation explanation = explain(profile);
    if (text_of(explanation).empty() || paragraph_of(explanation).empty()) abort();
    if (page_html(page_of(profile, explanation, {})).empty()) abort();
    if (trace_of(profile).empty() || to_json(profile).empty()) abort();
  } catch (const DataError&) {
  }
  return 0;
}
