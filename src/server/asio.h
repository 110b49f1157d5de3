// Asio, included in one way everywhere.
//
// Asio 1.18 uses std::exchange without including <utility>.
#pragma once

#include <utility>
//
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace karez {

namespace asio = boost::asio;

}  // namespace karez
