// An HTTP server for tests of the router that answers as it is told, in bytes, and may break off.
//
// GET /health has a status of its own; everything else goes to the script.
// Thread: a thread for each connection calls the script; the rest from any thread.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace karez {

// A connection with one request that was read.
class ScriptedExchange {
 public:
  ScriptedExchange(int socket, std::string request, const std::atomic<bool>& stopping)
      : socket_(socket), request_(std::move(request)), stopping_(stopping) {}

  const std::string& request() const { return request_; }
  std::string body() const;
  // False: the other side is gone.
  bool send(const std::string& bytes) const;
  // Until the other side has closed, the condition holds, or the node ends.
  void wait(const std::function<bool()>& condition = [] { return false; }) const;
  // A whole answer.
  void respond(int status, const std::string& body, const std::string& headers = "") const;
  // Its beginning; a chunk of it; the end.
  void begin_chunked(const std::string& content_type) const;
  bool chunk(const std::string& data) const;
  void end_chunks() const { send("0\r\n\r\n"); }

 private:
  bool is_closed() const;
  int socket_;
  std::string request_;
  const std::atomic<bool>& stopping_;
};

class ScriptedNode {
 public:
  using Script = std::function<void(const ScriptedExchange&)>;

  explicit ScriptedNode(Script script);
  ~ScriptedNode();

  int port() const { return port_; }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  // 0: the check is never answered.
  void set_health(int status) { health_ = status; }
  // Those that reached the script.
  int requests() const { return requests_; }
  std::string last_request() const;
  // Connections are refused from now on.
  void stop();

 private:
  void accept_all();
  void serve(int socket);

  const Script script_;
  int listener_;
  int port_ = 0;
  std::atomic<int> health_{200};
  std::atomic<int> requests_{0};
  std::atomic<bool> stopping_{false};
  mutable std::mutex mutex_;  // of the two below
  std::string last_request_;
  std::vector<std::thread> connections_;
  std::thread thread_;
};

}  // namespace karez
