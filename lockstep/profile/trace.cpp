#include "lockstep/profile/trace.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"

namespace lockstep {

std::string trace_text(const Recorder& recorder) {
  nlohmann::json events = nlohmann::json::array();
  int line = 0;
  for (const Track* track : recorder.tracks()) {
    events.push_back({{"ph", "M"},
                      {"name", "thread_name"},
                      {"pid", 0},
                      {"tid", line},
                      {"args", {{"name", track->name()}}}});
    for (const Span& span : track->spans()) {
      events.push_back({{"ph", "X"},
                        {"name", span.name},
                        {"cat", name_of(span.kind)},
                        {"pid", 0},
                        {"tid", line},
                        {"ts", static_cast<double>(span.begin_ns) * 1e-3},
                        {"dur", static_cast<double>(span.end_ns - span.begin_ns) * 1e-3}});
    }
    ++line;
  }
  return nlohmann::json{{"traceEvents", std::move(events)}}.dump();
}

void write_trace(const Recorder& recorder, const std::filesystem::path& file) {
  std::ofstream out(file);
  out << trace_text(recorder);
  out.close();
  if (!out) fail<DataError>("[trace] cannot write {}", file.string());
}

}  // namespace lockstep
