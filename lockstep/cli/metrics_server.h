// MetricsServer: serves one text over HTTP, for Prometheus. A thread of its own waits for requests;
// it holds no lock while it writes, and nothing that a client does or leaves undone reaches the
// thread that trains: there are few connections at once, requests are short, and each has a
// deadline.
#pragma once

#include <memory>
#include <string>

namespace lockstep::cli {

// --metrics: a port of this host alone ("9100"; "0": any that is free), or an address to listen at
// ("0.0.0.0:9100", "[::]:9100"). UsageError for anything else.
struct MetricsAddress {
  std::string host = "127.0.0.1";
  int port = 0;
};
MetricsAddress parse_metrics_address(const std::string& text);

class MetricsServer {
 public:
  // UsageError, naming --metrics, if it cannot listen there.
  explicit MetricsServer(const MetricsAddress& address);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  // Where it listens: "http://127.0.0.1:9100/metrics".
  const std::string& url() const;
  // The text that requests get from now on. Any thread may call it.
  void set(std::string text);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::cli
