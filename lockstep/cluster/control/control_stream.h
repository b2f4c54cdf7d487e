// ControlStream: the worker's end of its stream to the control server. Messages are sent in order,
// from any thread, without waiting.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "lockstep/cluster/control/control.grpc.pb.h"

namespace lockstep {

class ControlStream final : private grpc::ClientBidiReactor<control::ToServer, control::ToWorker> {
 public:
  struct Handlers {
    // Both are called from threads of gRPC and must not wait; `ended` once, as the last.
    std::function<void(const control::ToWorker&)> message;
    std::function<void(const std::string& why)> ended;
  };
  ControlStream(const std::shared_ptr<grpc::Channel>& channel, Handlers handlers);
  // Cancels the stream where it has not ended, and waits for the last call of a handler.
  ~ControlStream() override;
  ControlStream(const ControlStream&) = delete;
  ControlStream& operator=(const ControlStream&) = delete;

  void send(control::ToServer message);
  // Ends the stream; `ended` will be called.
  void cancel();

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;
  void pump();

  Handlers handlers_;
  grpc::ClientContext context_;
  std::unique_ptr<control::Control::Stub> stub_;
  control::ToWorker in_;
  std::mutex mutex_;
  std::condition_variable done_changed_;
  std::deque<control::ToServer> queue_;
  bool writing_ = false;
  bool broken_ = false;
  bool done_ = false;
};

}  // namespace lockstep
