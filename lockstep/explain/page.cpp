#include "lockstep/explain/page.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/explain/page_parts.h"
#include "lockstep/explain/page_text.h"

namespace lockstep {
namespace {

// What the page's own script is marked with. The policy below lets no other script run, and lets
// nothing be loaded: a reader can trust that opening the page tells nobody.
constexpr const char* kNonce = "lockstep";

std::string tile(const std::string& value, const std::string& what) {
  return fmt::format("<li><b>{}</b>{}</li>", value, what);
}

std::string tiles(const Explanation& explanation) {
  const int replicas = std::max(explanation.replicas, 1);
  std::string out = "<ul class=\"tiles\">";
  out += tile(page::times_text(explanation.speed_up),
              fmt::format("of {} possible with changes", page::times_text(explanation.possible)));
  out += tile(page::percent_text(explanation.speed_up / replicas),
              fmt::format("of {} replica{}", replicas, replicas == 1 ? "" : "s"));
  out += tile(page::ms_text(explanation.step_ms), "per step (median)");
  out += tile(page::seconds_text(explanation.seconds), "in all");
  return out + "</ul>\n";
}

std::string head(const std::string& title) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:; "
      "style-src 'unsafe-inline'; script-src 'nonce-{}'\">\n"
      "<link rel=\"icon\" href=\"data:,\">\n<title>{}</title>\n<style>{}</style></head>\n",
      kNonce, page::escaped(title), page::kStyle);
}

}  // namespace

std::string page_html(const PageContents& contents) {
  const auto& explanation = contents.explanation;
  std::string title = contents.title;
  if (title.empty() && explanation) title = explanation->run;
  if (title.empty()) title = "Lockstep";
  std::string out = head(title);
  out += fmt::format("<body><header><h1>{}</h1>", page::escaped(title));
  if (!contents.subtitle.empty()) out += fmt::format("<p>{}</p>", page::escaped(contents.subtitle));
  out += "</header>\n<main>\n";
  if (explanation) {
    out += tiles(*explanation);
    out += page::waterfall_html(*explanation);
    out += page::advice_html(*explanation);
  }
  if (!contents.speed_up.empty())
    out += page::speed_up_html(contents.speed_up, contents.speed_up_note);
  if (contents.outlook) out += page::outlook_html(*contents.outlook);
  out += page::predictions_html(contents);
  if (contents.timeline) out += page::timeline_html(*contents.timeline);
  if (!contents.replicas.empty()) out += page::replicas_html(contents.replicas);
  if (!contents.input.empty()) out += page::input_html(contents.input);
  if (contents.memory) out += page::memory_html(*contents.memory);
  out += page::charts_html(contents.charts);
  if (!contents.noise.empty()) out += page::noise_html(contents.noise, contents.global_batch);
  out += fmt::format(
      "</main>\n<footer>Written by Lockstep. This page loads nothing from elsewhere.</footer>\n"
      "<script nonce=\"{}\">{}</script>\n</body></html>\n",
      kNonce, page::kScript);
  return out;
}

}  // namespace lockstep
