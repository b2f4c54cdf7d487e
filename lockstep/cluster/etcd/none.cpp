// In place of the membership in etcd, where gRPC was not found.
#include "lockstep/base/error.h"
#include "lockstep/cluster/etcd/etcd_membership.h"
#include "lockstep/cluster/etcd/etcd_observer.h"

namespace lockstep {
namespace {

[[noreturn]] void fail_without_etcd() {
  fail<UsageError>(
      "this build of Lockstep has no gRPC, over which it talks to etcd: install libgrpc++-dev and "
      "protobuf-compiler-grpc, and build again");
}

}  // namespace

class EtcdMembership::Impl {};
class EtcdObserver::Impl {};

EtcdObserver::EtcdObserver(EtcdObserverOptions) {
  fail_without_etcd();
}
EtcdObserver::~EtcdObserver() = default;

EtcdMembership::EtcdMembership(EtcdOptions) {
  fail_without_etcd();
}
EtcdMembership::~EtcdMembership() = default;
int EtcdMembership::worker() const {
  fail_without_etcd();
}
int EtcdMembership::workers() const {
  fail_without_etcd();
}
std::uint64_t EtcdMembership::generation() const {
  fail_without_etcd();
}
Store& EtcdMembership::store() {
  fail_without_etcd();
}
std::string EtcdMembership::address() const {
  fail_without_etcd();
}
bool EtcdMembership::came_later() const {
  fail_without_etcd();
}
void EtcdMembership::on_heartbeat(std::function<WorkerProgress()>) {
  fail_without_etcd();
}
int EtcdMembership::newcomers() const {
  fail_without_etcd();
}
void EtcdMembership::admit() {
  fail_without_etcd();
}
void EtcdMembership::on_failure(std::function<void(const Failure&)>) {
  fail_without_etcd();
}
void EtcdMembership::report_failure(const Failure&) {
  fail_without_etcd();
}
std::vector<ControlMember> EtcdMembership::members() const {
  fail_without_etcd();
}
bool EtcdMembership::still_current() {
  fail_without_etcd();
}
bool EtcdMembership::commit(const std::string&, std::string_view) {
  fail_without_etcd();
}
std::optional<std::string> EtcdMembership::committed(const std::string&) {
  fail_without_etcd();
}
bool EtcdMembership::propose(const std::vector<int>&) {
  fail_without_etcd();
}
OnFailure EtcdMembership::policy() const {
  fail_without_etcd();
}
bool EtcdMembership::goes_on() const {
  fail_without_etcd();
}
void EtcdMembership::rejoin(std::chrono::milliseconds) {
  fail_without_etcd();
}
void EtcdMembership::rejoin(const std::vector<int>&, std::chrono::milliseconds) {
  fail_without_etcd();
}
void EtcdMembership::leave() {
  fail_without_etcd();
}

}  // namespace lockstep
