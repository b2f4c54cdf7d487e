// The parts of a page; each is the HTML of a section.
#pragma once

#include <string>

#include "lockstep/explain/page.h"

namespace lockstep::page {

std::string waterfall_html(const Explanation& explanation);
std::string advice_html(const Explanation& explanation);
std::string predictions_html(const PageContents& contents);
std::string speed_up_html(const std::vector<SpeedUp>& points, const std::string& note);
std::string outlook_html(const LossOutlook& outlook);
std::string timeline_html(const Timeline& timeline);
std::string replicas_html(const std::vector<Replica>& replicas);
std::string input_html(const std::vector<InputStage>& stages);
std::string memory_html(const Memory& memory);
std::string charts_html(const std::vector<Chart>& charts);
std::string noise_html(const std::vector<NoisePoint>& points, double global_batch);

// The style sheet and the script, without their tags.
extern const char* const kStyle;
extern const char* const kScript;

}  // namespace lockstep::page
