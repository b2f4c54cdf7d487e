#include "lockstep/cluster/control/control_stream.h"

namespace lockstep {

ControlStream::ControlStream(const std::shared_ptr<grpc::Channel>& channel, Handlers handlers)
    : handlers_(std::move(handlers)), stub_(control::Control::NewStub(channel)) {
  stub_->async()->Attend(&context_, this);
  // Until reads fail: others than gRPC's threads start writes.
  AddHold();
  StartRead(&in_);
  StartCall();
}

ControlStream::~ControlStream() {
  cancel();
  std::unique_lock lock(mutex_);
  done_changed_.wait(lock, [&] { return done_; });
}

void ControlStream::cancel() {
  context_.TryCancel();
}

void ControlStream::send(control::ToServer message) {
  const std::lock_guard lock(mutex_);
  queue_.push_back(std::move(message));
  pump();
}

void ControlStream::pump() {
  if (writing_ || broken_ || queue_.empty()) return;
  writing_ = true;
  StartWrite(&queue_.front());
}

void ControlStream::OnReadDone(bool ok) {
  if (ok) {
    handlers_.message(in_);
    in_.Clear();
    StartRead(&in_);
    return;
  }
  const std::lock_guard lock(mutex_);
  broken_ = true;
  RemoveHold();
}

void ControlStream::OnWriteDone(bool ok) {
  const std::lock_guard lock(mutex_);
  writing_ = false;
  queue_.pop_front();
  if (ok) pump();
}

void ControlStream::OnDone(const grpc::Status& status) {
  handlers_.ended(status.error_message().empty() ? "it closed the connection"
                                                 : status.error_message());
  const std::lock_guard lock(mutex_);
  done_ = true;
  done_changed_.notify_all();
}

}  // namespace lockstep
