// Memory over a step: what is allocated while each instruction runs, stacked by kind.
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/explain/page_parts.h"
#include "lockstep/explain/page_plot.h"
#include "lockstep/explain/page_text.h"

namespace lockstep::page {
namespace {

constexpr std::size_t kMostColumns = 500;  // of the picture
constexpr std::size_t kMostLayers = 30;

// For each column of the picture the instruction with the most memory, so that the peak is shown.
std::vector<const MemoryAt*> columns_of(const std::vector<MemoryAt>& instructions) {
  const std::size_t count = std::min(instructions.size(), kMostColumns);
  std::vector<const MemoryAt*> columns;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t end = (i + 1) * instructions.size() / count;
    const MemoryAt* most = &instructions[i * instructions.size() / count];
    for (const MemoryAt* at = most; at < instructions.data() + end; ++at) {
      if (total_bytes(*at) > total_bytes(*most)) most = at;
    }
    columns.push_back(most);
  }
  return columns;
}

// The area of a kind: there along its upper edge, back along its lower one.
std::string area(const std::vector<const MemoryAt*>& columns, std::size_t kind, double most) {
  const double wide = 1000.0 / static_cast<double>(columns.size());
  std::string there;
  std::string back;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const auto& bytes = columns[i]->bytes;
    double below = 0;
    for (std::size_t k = 0; k < kind; ++k) below += bytes[k];
    const double low = 1000 * (1 - below / most);
    const double high = 1000 * (1 - (below + bytes[kind]) / most);
    const double left = wide * static_cast<double>(i);
    there += fmt::format("{}{:.1f} {:.1f}H{:.1f}", i == 0 ? "M" : "L", left, high, left + wide);
    back = fmt::format("L{:.1f} {:.1f}H{:.1f}", left + wide, low, left) + back;
  }
  return fmt::format("<path class=\"area m{}\" d=\"{}{}Z\"><title>{}</title></path>", kind, there,
                     back, name_of(static_cast<MemoryKind>(kind)));
}

std::string peak_table(const Memory& memory) {
  if (memory.peak.empty()) return "";
  std::vector<PeakPart> layers = memory.peak;
  std::ranges::stable_sort(layers, std::ranges::greater{}, &PeakPart::bytes);
  std::vector<std::vector<std::string>> rows;
  double rest = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (i < kMostLayers) {
      rows.push_back({layers[i].layer, name_of(layers[i].kind), size_text(layers[i].bytes)});
    } else {
      rest += layers[i].bytes;
    }
  }
  if (rest > 0) {
    rows.push_back({fmt::format("{} others", layers.size() - kMostLayers), "", size_text(rest)});
  }
  return table_html("What is alive at the peak, by layer", {"layer", "kind", "bytes"}, rows);
}

}  // namespace

std::string memory_html(const Memory& memory) {
  if (memory.instructions.empty()) return "";
  const MemoryAt& peak = *std::ranges::max_element(memory.instructions, {}, total_bytes);
  const double most = std::max(total_bytes(peak), 1.0);
  const std::vector<const MemoryAt*> columns = columns_of(memory.instructions);
  std::string picture =
      "<div class=\"plot\"><span class=\"yl\">memory</span><svg role=\"img\" aria-label=\"memory "
      "while each instruction of the step runs\" viewBox=\"0 0 1000 1000\" "
      "preserveAspectRatio=\"none\">";
  std::vector<Key> keys;
  for (std::size_t kind = 0; kind < kMemoryKinds; ++kind) {
    picture += area(columns, kind, most);
    keys.push_back(
        {fmt::format("m{}", kind), fmt::format("{} {}", name_of(static_cast<MemoryKind>(kind)),
                                               size_text(peak.bytes[kind]))});
  }
  picture += "</svg>";
  for (const double part : {0.0, 0.5, 1.0}) {
    picture += fmt::format("<span class=\"yt\" style=\"top:{:.0f}%\">{}</span>", 100 * (1 - part),
                           size_text(part * most));
  }
  picture += fmt::format("</div><p class=\"xl\">{} instructions of a step</p>",
                         memory.instructions.size());
  picture += legend_html(keys) + peak_table(memory);
  std::string sentence =
      fmt::format("The peak is {} while {} runs", size_text(total_bytes(peak)), peak.instruction);
  if (memory.capacity) {
    sentence +=
        fmt::format(", {} of the device's {}", percent_text(total_bytes(peak) / *memory.capacity),
                    size_text(*memory.capacity));
  }
  sentence += "; the key shows what is alive then.";
  return section_html("memory", "Memory over a step", sentence, picture);
}

}  // namespace lockstep::page
