#include "server/reload_thread.h"

#include "base/thread_name.h"

namespace quire::server {

void ReloadThread::Start() {
  thread_ = std::thread([this] { Run(); });
}

void ReloadThread::Request() {
  MutexLock lock(&mutex_);
  is_requested_ = true;
  changed_.NotifyAll();
}

bool ReloadThread::Stop() {
  {
    MutexLock lock(&mutex_);
    is_stopping_ = true;
    if (is_reloading_) return false;
    changed_.NotifyAll();
  }
  thread_.join();
  return true;
}

void ReloadThread::Run() {
  SetThreadName("reloader");
  for (;;) {
    {
      MutexLock lock(&mutex_);
      is_reloading_ = false;
      while (!is_requested_ && !is_stopping_) changed_.Wait(&mutex_);
      if (is_stopping_) return;
      is_requested_ = false;
      is_reloading_ = true;
    }
    reload_();
  }
}

}  // namespace quire::server
