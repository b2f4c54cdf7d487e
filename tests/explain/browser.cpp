#include "explain/browser.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <sstream>
#include <stdexcept>

namespace lockstep::testing {
namespace {

constexpr int kPatienceMs = 120'000;  // a guard against hanging, on a machine with much to do

}  // namespace

std::optional<std::string> find_browser() {
  const char* path = std::getenv("PATH");
  for (const char* name : {"chromium", "chromium-browser", "google-chrome"}) {
    std::istringstream folders(path == nullptr ? "/usr/bin" : path);
    for (std::string folder; std::getline(folders, folder, ':');) {
      const std::string file = folder + "/" + name;
      if (access(file.c_str(), X_OK) == 0) return file;
    }
  }
  return std::nullopt;
}

Browser::Browser(const std::string& program) {
  int down[2];
  int up[2];
  if (pipe2(down, O_CLOEXEC) != 0 || pipe2(up, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  const std::string profile = "--user-data-dir=" + profile_.path();
  id_ = fork();
  if (id_ == 0) {
    setpgid(0, 0);
    // Above 4 first, so that neither end is closed by the other's dup2.
    const int in = fcntl(down[0], F_DUPFD_CLOEXEC, 10);
    const int out = fcntl(up[1], F_DUPFD_CLOEXEC, 10);
    dup2(in, 3);
    dup2(out, 4);
    const int null = ::open("/dev/null", O_RDWR);
    for (const int stream : {0, 1, 2}) dup2(null, stream);
    setenv("HOME", profile_.path().c_str(), 1);
    execl(program.c_str(), program.c_str(), "--headless=new", "--no-sandbox", "--disable-gpu",
          "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
          "--disable-component-update", "--disable-sync", "--disable-extensions",
          "--no-proxy-server", "--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe",
          profile.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  close(down[0]);
  close(up[1]);
  to_ = down[1];
  from_ = up[0];
  signal(SIGPIPE, SIG_IGN);
  const nlohmann::json target = call("Target.createTarget", {{"url", "about:blank"}});
  session_ = call("Target.attachToTarget", {{"targetId", target.at("targetId")}, {"flatten", true}})
                 .at("sessionId");
  for (const char* domain : {"Page.enable", "Network.enable", "Runtime.enable", "Log.enable"}) {
    call(domain);
  }
}

Browser::~Browser() {
  close(to_);
  close(from_);
  kill(-id_, SIGKILL);  // with its helpers: this is their process group
  waitpid(id_, nullptr, 0);
}

nlohmann::json Browser::read_message() {
  std::size_t end = 0;
  while ((end = unread_.find('\0')) == std::string::npos) {
    pollfd readable = {.fd = from_, .events = POLLIN, .revents = 0};
    const int ready = poll(&readable, 1, kPatienceMs);
    if (ready < 0 && errno == EINTR) continue;
    char bytes[65536];
    const ssize_t count = ready > 0 ? read(from_, bytes, sizeof(bytes)) : 0;
    if (count <= 0) throw std::runtime_error("the browser does not answer");
    unread_.append(bytes, static_cast<std::size_t>(count));
  }
  const nlohmann::json message = nlohmann::json::parse(unread_.substr(0, end));
  unread_.erase(0, end + 1);
  return message;
}

void Browser::note(const nlohmann::json& event) {
  const std::string method = event.value("method", "");
  if (method == "Page.loadEventFired") loaded_ = true;
  if (method == "Network.requestWillBeSent") {
    requests_.push_back(event.at("params").at("request").at("url"));
  }
  if (method == "Log.entryAdded" || method == "Runtime.exceptionThrown" ||
      method == "Runtime.consoleAPICalled") {
    complaints_.push_back(event.at("params").dump());
  }
}

nlohmann::json Browser::call(const std::string& method, nlohmann::json parameters) {
  nlohmann::json message = {
      {"id", ++calls_}, {"method", method}, {"params", std::move(parameters)}};
  if (!session_.empty()) message["sessionId"] = session_;
  const std::string text = message.dump() + '\0';
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t count = write(to_, text.data() + at, text.size() - at);
    if (count <= 0) throw std::runtime_error("the browser has ended");
    at += static_cast<std::size_t>(count);
  }
  while (true) {
    const nlohmann::json answer = read_message();
    if (answer.value("id", 0) != calls_) {
      note(answer);
      continue;
    }
    if (answer.contains("error")) throw std::runtime_error(method + ": " + answer["error"].dump());
    return answer.at("result");
  }
}

void Browser::open(const std::string& url, const View& view) {
  call("Emulation.setDeviceMetricsOverride", {{"width", view.width},
                                              {"height", view.height},
                                              {"deviceScaleFactor", view.phone ? 2 : 1},
                                              {"mobile", view.phone}});
  call("Emulation.setEmulatedMedia",
       {{"features",
         {{{"name", "prefers-color-scheme"}, {"value", view.dark ? "dark" : "light"}}}}});
  requests_.clear();
  complaints_.clear();
  loaded_ = false;
  call("Page.navigate", {{"url", url}});
  while (!loaded_) note(read_message());
}

nlohmann::json Browser::evaluate(const std::string& expression) {
  const nlohmann::json result =
      call("Runtime.evaluate", {{"expression", expression}, {"returnByValue", true}});
  if (result.contains("exceptionDetails")) throw std::runtime_error(result.dump());
  return result.at("result").value("value", nlohmann::json());
}

}  // namespace lockstep::testing
