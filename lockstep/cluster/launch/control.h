// The seam between the launcher and the control plane that it serves for its workers.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/cluster/launch/hosts.h"
#include "lockstep/comm/membership.h"
#include "lockstep/comm/port_range.h"

namespace lockstep::launch {

// What the control plane tells about a worker. Joined: it takes part; until it has left or failed,
// its end will be told. Left: it said that it goes. Failed: it is held to be lost; without a
// worker, the control plane itself has failed.
struct ControlReport {
  enum class Kind { Joined, Left, Failed };
  Kind kind = Kind::Failed;
  int worker = -1;
  std::string message = {};
  bool goes_on = false;  // the others wait for it to be started again, or go on without it
  bool running = true;   // its process may still run: it has fallen silent or stands still
};

struct ControlRequest {
  std::string bind;  // a numeric address: the only one to listen on
  PortRange ports = {};
  int workers = 1;
  std::string secret;  // who knows it belongs to the job
  OnFailure on_failure = OnFailure::Stop;
  std::chrono::milliseconds heartbeat_timeout = std::chrono::seconds(5);
  // Tells the launcher; from any thread, as long as the control plane lives.
  std::function<void(ControlReport)> report = nullptr;
};

// Served as long as the object lives.
class ControlPlane {
 public:
  virtual ~ControlPlane() = default;
  virtual std::string address() const = 0;  // "host:port" or "[v6]:port", as workers reach it
  // Whether it reports how workers end; otherwise the launcher goes by their processes alone.
  virtual bool reports() const { return false; }
  // How long it may take to report how a worker ended; after that the launcher goes by the process.
  // Nothing: it always does.
  virtual std::optional<std::chrono::milliseconds> reports_within() const { return std::nullopt; }
};

// Starts the control plane. The launcher calls it once, before the first worker starts, and with
// its signals blocked, so that threads started here leave them to the launcher.
using StartControl = std::function<std::unique_ptr<ControlPlane>(const ControlRequest&)>;

// A control plane that only holds its port.
std::unique_ptr<ControlPlane> reserve_control_port(const ControlRequest& request);

// The address to serve the control plane at: `bind` if it is given; loopback if all workers are
// here; or else that of the interface through which the first other host is reached. UsageError if
// that host's name is unknown.
std::string control_bind_address(const std::string& bind, const std::vector<Seat>& seats);

// "127.0.0.1:29500-29600"; "127.0.0.1:0" for any port.
std::string with_ports(const std::string& address, PortRange ports);

}  // namespace lockstep::launch
