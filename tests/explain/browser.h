// A headless Chromium, driven over the pipe of its DevTools protocol: NUL-terminated JSON messages,
// which the browser reads from descriptor 3 and writes to descriptor 4.
#pragma once

#include <sys/types.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "temporary_folder.h"

namespace lockstep::testing {

// The browser's path; nothing if none is installed.
std::optional<std::string> find_browser();

class Browser {
 public:
  // std::runtime_error if it cannot be started; it answers no later than kPatience.
  explicit Browser(const std::string& program);
  ~Browser();
  Browser(const Browser&) = delete;
  Browser& operator=(const Browser&) = delete;

  struct View {
    int width = 1280;
    int height = 800;
    bool phone = false;
    bool dark = false;
  };
  // Loads a page and waits until it has. Everything below is about this page.
  void open(const std::string& url, const View& view);
  // The value of a JavaScript expression.
  nlohmann::json evaluate(const std::string& expression);
  // The addresses that the page asked for.
  const std::vector<std::string>& requests() const { return requests_; }
  // Messages of its console, and errors of the page.
  const std::vector<std::string>& complaints() const { return complaints_; }

 private:
  nlohmann::json call(const std::string& method,
                      nlohmann::json parameters = nlohmann::json::object());
  nlohmann::json read_message();
  void note(const nlohmann::json& event);

  TemporaryFolder profile_;
  pid_t id_ = -1;
  int to_ = -1;
  int from_ = -1;
  int calls_ = 0;
  std::string session_;
  std::string unread_;
  bool loaded_ = false;
  std::vector<std::string> requests_;
  std::vector<std::string> complaints_;
};

}  // namespace lockstep::testing
