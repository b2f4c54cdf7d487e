// In place of the control server and client, where gRPC was not found.
#include "lockstep/base/error.h"
#include "lockstep/cluster/control/control_client.h"

namespace lockstep {
namespace {

[[noreturn]] void fail_without_grpc() {
  fail<UsageError>(
      "this build of Lockstep has no gRPC, over which workers find each other: install "
      "libgrpc++-dev and protobuf-compiler-grpc, and build again");
}

}  // namespace

class ControlServer::Impl {};
class ControlClient::Impl {};

std::string control_version() {
  return {};
}

ControlServer::ControlServer(ControlServerOptions) {
  fail_without_grpc();
}
ControlServer::~ControlServer() = default;
int ControlServer::port() const {
  fail_without_grpc();
}
std::string ControlServer::address() const {
  fail_without_grpc();
}
void ControlServer::new_generation(const std::vector<int>&) {
  fail_without_grpc();
}
std::uint64_t ControlServer::generation() const {
  fail_without_grpc();
}
std::optional<Failure> ControlServer::failure() const {
  fail_without_grpc();
}
std::uint64_t ControlServer::refused() const {
  fail_without_grpc();
}

ControlClient::ControlClient(ControlClientOptions) {
  fail_without_grpc();
}
ControlClient::~ControlClient() = default;
int ControlClient::worker() const {
  fail_without_grpc();
}
int ControlClient::workers() const {
  fail_without_grpc();
}
std::uint64_t ControlClient::generation() const {
  fail_without_grpc();
}
Store& ControlClient::store() {
  fail_without_grpc();
}
std::string ControlClient::address() const {
  fail_without_grpc();
}
void ControlClient::on_heartbeat(std::function<WorkerProgress()>) {}
void ControlClient::on_failure(std::function<void(const Failure&)>) {
  fail_without_grpc();
}
void ControlClient::report_failure(const Failure&) {
  fail_without_grpc();
}
bool ControlClient::commit(const std::string&, std::string_view) {
  fail_without_grpc();
}
std::vector<ControlMember> ControlClient::members() const {
  fail_without_grpc();
}
void ControlClient::barrier(const std::string&, std::chrono::milliseconds) {
  fail_without_grpc();
}
void ControlClient::announce(const std::string&) {
  fail_without_grpc();
}
void ControlClient::progress(std::uint64_t, bool) {
  fail_without_grpc();
}
OnFailure ControlClient::policy() const {
  fail_without_grpc();
}
int ControlClient::newcomers() const {
  fail_without_grpc();
}
void ControlClient::admit() {
  fail_without_grpc();
}
bool ControlClient::goes_on() const {
  fail_without_grpc();
}
void ControlClient::rejoin(std::chrono::milliseconds) {
  fail_without_grpc();
}
void ControlClient::leave() {
  fail_without_grpc();
}
ClockOffset ControlClient::clock_offset() const {
  fail_without_grpc();
}

}  // namespace lockstep
