#include "lockstep/comm/remote/mixed_wire.h"

#include <fmt/format.h>

namespace lockstep {
namespace {

class MixedWire final : public Wire {
 public:
  MixedWire(std::unique_ptr<Wire> between_hosts, std::unique_ptr<Wire> within,
            std::span<const int> host)
      : between_hosts_(std::move(between_hosts)),
        within_(std::move(within)),
        near_(static_cast<std::size_t>(between_hosts_->workers())) {
    for (const int worker : host) near_[static_cast<std::size_t>(worker)] = true;
  }

  int worker() const override { return between_hosts_->worker(); }
  int workers() const override { return between_hosts_->workers(); }
  std::unique_ptr<Transfer> send(int to, std::uint64_t tag,
                                 std::span<const std::byte> data) override {
    return to_worker(to).send(to, tag, data);
  }
  std::unique_ptr<Transfer> receive(int from, std::uint64_t tag,
                                    std::span<std::byte> data) override {
    return to_worker(from).receive(from, tag, data);
  }
  void interrupt() override {
    between_hosts_->interrupt();
    within_->interrupt();
  }

 private:
  Wire& to_worker(int worker) {
    return near_[static_cast<std::size_t>(worker)] ? *within_ : *between_hosts_;
  }

  std::unique_ptr<Wire> between_hosts_;
  std::unique_ptr<Wire> within_;
  std::vector<bool> near_;  // by worker: on this host
};

}  // namespace

MakeWire mixed_wires(const MixedWireOptions& options) {
  if (options.host.size() < 2) return options.between_hosts;
  return [options](std::uint64_t generation) -> std::unique_ptr<Wire> {
    auto between_hosts = options.between_hosts(generation);
    auto within = make_ring_wire({.store = options.store,
                                  .prefix = fmt::format("{}/{}", options.prefix, generation),
                                  .worker = options.worker,
                                  .workers = options.workers,
                                  .host = options.host,
                                  .timeout = options.timeout});
    return std::make_unique<MixedWire>(std::move(between_hosts), std::move(within), options.host);
  };
}

}  // namespace lockstep
